"""Reads a story back, sentence by sentence, and lets the world judge each event.

A sentence that is none of the world's sentences counts as a broken rule too. The first broken rule ends the reading.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from weights_tools.train import rules, words
from weights_tools.train.sentences import CLOSING, SAID
from weights_tools.train.teller import SLOT
from weights_tools.train.world import Roles, RuleBrokenError, World, require

assert rules  # importing it fills the table of rules

_STOCK: dict[str, tuple[str, ...]] = {
    "A": (*words.NAMES, "He", "She", "he", "she"),
    "B": words.NAMES,
    "he": ("he", "she"),
    "him": ("him", "her"),
    "his": ("his", "her"),
    "bhe": ("he", "she"),
    "bhim": ("him", "her"),
    "K": words.KINDS,
    "i": words.ITEMS,
    "c": words.COLOURS,
    "d": words.DAYS,
    "w": words.SKIES,
    **dict.fromkeys("xy", words.OBJECTS),
    **dict.fromkeys("pq", words.PLACES),
    **dict.fromkeys("nmkl", words.NUMBERS),
}


@dataclass(frozen=True)
class Verdict:
    """What the reading found: the broken rule, if any, where, and whether the story ended with its closing words."""

    broken: str | None
    sentence: str | None
    events: int
    closed: bool
    world: World


@dataclass(frozen=True)
class Reading:
    """One way to read the next piece of text: an event, and how many characters it takes."""

    kind: str
    said: tuple[tuple[str, str], ...]
    length: int


def check_story(text: str) -> Verdict:
    """Read a whole story and judge it."""
    world, rest, events = World(), text.strip(), 0
    while rest:
        reading = _read_next(rest)
        if reading is None:
            sentence = re.split(r"(?<=[.!?]) ", rest)[0]
            return Verdict("not a sentence of this world", sentence, events, False, world)
        sentence = rest[: reading.length]
        try:
            world.apply(reading.kind, _roles(reading, world))
        except RuleBrokenError as broken:
            return Verdict(str(broken), sentence, events, False, world)
        rest = rest[reading.length :].lstrip(" ")
        events += 1
    closed = text.strip().endswith(CLOSING)
    return Verdict(None if closed else "no closing words", None, events, closed, world)


def _roles(reading: Reading, world: World) -> Roles:
    """Turn what was said into roles: pronouns become people, and their gender must fit."""
    roles: Roles = {}
    for name, word in reading.said:
        if name in ("A", "B"):
            person = word
            if word.lower() in ("he", "she"):
                person = str(roles.get("A", world.subject))
                require(person != "None", f'nobody is meant by "{word}"')
                require(
                    words.PRONOUNS[words.gender_of(person)][0] == word.lower(), f'{person} is not "{word}"'
                )
            require(roles.setdefault(name, person) == person, f"{person} for {roles[name]}")
        elif name in ("he", "him", "his", "bhe", "bhim"):
            whose = roles.get("B" if name.startswith("b") else "A", "")
            index = {"e": 0, "m": 1, "s": 2}[name[-1]]
            require(words.PRONOUNS[words.gender_of(whose)][index] == word, f'{whose} is not "{word}"')
        else:
            require(roles.setdefault(name, word) == word, f"{word} for {roles[name]}")
    return roles


def _read_next(text: str) -> Reading | None:
    """Find the longest sentence pattern that the text begins with."""
    best: Reading | None = None
    for kind, pattern, slots in _patterns():
        match = pattern.match(text)
        if match and (best is None or match.end() > best.length):
            # People come first, so that pronouns find whom they stand for.
            said = sorted(zip(slots, match.groups(), strict=True), key=lambda pair: (len(pair[0]), pair[0]))
            said.sort(key=lambda pair: pair[1].lower() in ("he", "she", "him", "her", "his"))
            best = Reading(kind, tuple(said), match.end())
    return best


@cache
def _patterns() -> list[tuple[str, re.Pattern[str], tuple[str, ...]]]:
    """Compile every sentence pattern; a slot becomes a choice of the words that fit."""
    compiled = []
    for kind, patterns in SAID.items():
        for pattern in dict.fromkeys(patterns):
            source, slots, position = "", [], 0
            for slot in SLOT.finditer(pattern):
                source += re.escape(pattern[position : slot.start()]) + f"({'|'.join(_STOCK[slot[1]])})"
                slots.append(slot[1])
                position = slot.end()
            source += re.escape(pattern[position:]) + r"(?= |$)"
            compiled.append((kind, re.compile(source), tuple(slots)))
    return compiled

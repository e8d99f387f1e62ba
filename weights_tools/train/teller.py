"""Tells a story: chooses people, things and words at random, and lets the world say what can happen."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from weights_tools.train import rules, words
from weights_tools.train.sentences import SAID
from weights_tools.train.world import Roles, World

assert rules  # importing it fills the table of rules

SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Beat:
    """One told event: its kind, its roles and its sentence."""

    kind: str
    roles: Roles
    text: str


def world_after(beats: list[Beat]) -> World:
    """Give the state of the world after these events."""
    world = World()
    for beat in beats:
        world.apply(beat.kind, beat.roles)
    return world


class Teller:
    """A story in the making. The letters of a shape ("A", "x", "p") stand for entities chosen on first use."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.world = World()
        self.beats: list[Beat] = []
        self.cast: dict[str, str] = {}
        self._names = rng.sample(words.NAMES, 8)
        self._objects = rng.sample(words.OBJECTS, 8)
        self._places = rng.sample(words.PLACES, len(words.PLACES))

    def tell(self, kind: str, **roles: str) -> None:
        """Let an event happen and say it. Raises `RuleBrokenError` if it cannot happen."""
        pattern = self.rng.choice(SAID[kind])
        names = set(SLOT.findall(pattern))
        before = self.world.subject
        self.world.apply(kind, roles)
        text = SLOT.sub(lambda slot: self._fill(slot, roles, before, names), pattern)
        self.beats.append(Beat(kind, roles, text))

    def _fill(self, slot: re.Match[str], roles: Roles, before: str | None, names: set[str]) -> str:
        name = slot[1]
        if name in ("he", "him", "his"):
            return words.PRONOUNS[words.gender_of(roles["A"])][("he", "him", "his").index(name)]
        if name in ("bhe", "bhim"):
            return words.PRONOUNS[words.gender_of(roles["B"])][("bhe", "bhim").index(name)]
        if name == "A" and self._says_pronoun(roles, before, names):
            pronoun = words.PRONOUNS[words.gender_of(roles["A"])][0]
            starts = slot.start() == 0 or slot.string[slot.start() - 2] in ".!?"
            return pronoun.capitalize() if starts else pronoun
        return roles[name]

    def _says_pronoun(self, roles: Roles, before: str | None, names: set[str]) -> bool:
        """Allow a pronoun where the last subject goes on alone, in patterns without other slots for people."""
        alone = not names & {"B", "he", "him", "bhe"}
        return alone and before == roles["A"] and self._pronoun_turn()

    def _pronoun_turn(self) -> bool:
        return self.rng.random() < 0.4

    def new_person(self) -> tuple[str, str]:
        """Choose a name and a kind that the story does not have yet."""
        name = self._names.pop()
        free = [kind for kind in words.KINDS if kind not in self.world.kind_of.values()]
        fitting = [kind for kind in free if kind not in words.PEOPLE_KINDS or kind == words.gender_of(name)]
        people = [kind for kind in fitting if kind in words.PEOPLE_KINDS]
        return name, people[0] if people and self.rng.random() < 0.5 else self.rng.choice(fitting)

    def new_object(self, edible: str = "any") -> str:
        """Choose an object that the story does not have yet; `edible` is "yes", "no" or "any"."""
        for index, thing in enumerate(self._objects):
            if edible == "any" or (thing in words.FOODS) == (edible == "yes"):
                return self._objects.pop(index)
        stock = words.FOODS if edible == "yes" else words.THINGS
        used = {*self.world.colour_of, *self.cast.values()}
        return self.rng.choice([thing for thing in stock if thing not in used])

    def new_place(self) -> str:
        """Choose a place that the story has not been to."""
        return self._places.pop()

    def text(self) -> str:
        """Join what was told so far."""
        return " ".join(beat.text for beat in self.beats)

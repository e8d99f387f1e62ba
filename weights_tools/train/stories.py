"""Turns a shape into a told story: casts the letters, adds bystanders, asides and reminders of what is so."""

from __future__ import annotations

import random
from dataclasses import dataclass

from weights_tools.train import words
from weights_tools.train.shapes import SHAPES, SIGNATURES
from weights_tools.train.teller import Beat, Teller

ASIDE_SHARE = 0.3
REMINDER_SHARE = 0.5
BYSTANDER_SHARE = 0.45


@dataclass(frozen=True)
class Story:
    """A whole story: its shape and its events in order."""

    shape: str
    beats: list[Beat]

    @property
    def text(self) -> str:
        """The story as one line of text."""
        return " ".join(beat.text for beat in self.beats)


def tell_story(rng: random.Random, shape: str | None = None) -> Story:
    """Tell one story, of a shape chosen at random unless one is named."""
    chosen = shape or rng.choice(list(SHAPES))
    told = Teller(rng)
    steps = [step for step in SHAPES[chosen] if not step.endswith("?") or rng.random() < 0.5]
    bystanders = _bystander_steps(rng)
    for number, step in enumerate(steps):
        if step == "*":
            wander(told, list(told.world.kind_of))
        else:
            play_step(told, step.rstrip("?"))
        if bystanders and number >= 1 and step != steps[-1] and rng.random() < 0.4:
            play_step(told, bystanders.pop(0))
        if number >= 1 and number < len(steps) - 1 and rng.random() < ASIDE_SHARE:
            aside(told)
    return Story(chosen, told.beats)


def _bystander_steps(rng: random.Random) -> list[str]:
    """Plan what a person outside the plot does: comes in, has something, walks about."""
    if rng.random() > BYSTANDER_SHARE:
        return []
    walks = [f"go Z {place}" for place in "uvw"[: rng.randrange(4)]]
    return ["enter_in Z t", *(["has_new Z o"] if rng.random() < 0.6 else []), *walks]


def play_step(told: Teller, step: str) -> None:
    """Cast the letters of a step and tell its event."""
    kind, *letters = step.split()
    if kind == "sky":
        told.tell("sky", w=letters[0] if letters else told.rng.choice(words.SKIES))
        return
    roles = {role: cast(told, letter) for role, letter in zip(SIGNATURES[kind], letters, strict=True)}
    told.tell(kind, **_completed(told, kind, roles))


def cast(told: Teller, letter: str) -> str:
    """Give what a letter stands for, choosing it on first use."""
    if letter not in told.cast:
        if letter.isupper():
            told.cast[letter], told.cast["kind " + letter] = told.new_person()
        elif letter in "fgxyzo":
            told.cast[letter] = told.new_object("yes" if letter in "fg" else "no")
        elif letter in "ie":
            told.cast[letter] = told.rng.choice(words.ITEMS if letter == "i" else words.EDIBLE)
        else:
            told.cast[letter] = told.new_place()
    return told.cast[letter]


def _completed(told: Teller, kind: str, roles: dict[str, str]) -> dict[str, str]:
    """Add what a step leaves open: kinds of people, colours, numbers, days."""
    rng, world = told.rng, told.world
    newcomer = {"enter": "A", "enter_in": "A", "meet": "B"}.get(kind)
    if newcomer:
        letter = next(key for key, value in told.cast.items() if value == roles[newcomer])
        roles["K"] = told.cast["kind " + letter]
    if kind in ("has_new", "lies_new", "find_new"):
        roles["c"] = rng.choice(words.COLOURS)
    elif kind == "paint":
        roles["c"] = rng.choice([colour for colour in words.COLOURS if colour != world.colour_of[roles["x"]]])
    elif kind == "colour":
        roles["c"] = world.colour_of[roles["x"]]
    elif kind == "day":
        roles["d"] = rng.choice(words.DAYS)
    elif kind == "next_day":
        roles["d"] = words.DAYS[(words.DAYS.index(str(world.day)) + 1) % 7]
    elif kind in ("count", "more", "fewer", "share"):
        roles |= _numbers(told, kind, roles)
    return roles


def _numbers(told: Teller, kind: str, roles: dict[str, str]) -> dict[str, str]:
    """Choose the numbers of a counting event so that every total stays between two and twenty."""
    if kind == "count":
        return {"n": words.NUMBERS[told.rng.randint(7, 12)]}
    had = told.world.count_of[roles["A"], roles["i"]]
    if kind == "more":
        change = told.rng.randint(2, min(4, 20 - had))
        return {"m": words.NUMBERS[change], "k": words.NUMBERS[had + change]}
    change = told.rng.randint(2, min(3, had - 2))
    return {"m": words.NUMBERS[change], "k": words.NUMBERS[had - change]}


def aside(told: Teller) -> None:
    """Tell something that changes nothing: a reminder of what is so, or a bit of colour."""
    rng, world = told.rng, told.world
    awake = [person for person in world.kind_of if person not in world.asleep]
    if rng.random() < REMINDER_SHARE:
        reminders = [
            ("at", {"A": person, "p": world.place_of[person]}) for person in awake if person in world.place_of
        ]
        reminders += [
            ("has", {"A": who, "x": thing}) for thing, who in world.holder_of.items() if who in awake
        ]
        reminders += [("still_lies", {"x": thing, "p": place}) for thing, place in world.lies_in.items()]
        if reminders:
            kind, roles = rng.choice(reminders)
            told.tell(kind, **roles)
        return
    person = rng.choice(awake) if awake else None
    pairs = [other for other in awake if person and other != person and same_place(told, person, other)]
    if person and pairs and rng.random() < 0.5:
        told.tell("together", A=person, B=rng.choice(pairs))
    elif person and rng.random() < 0.6:
        told.tell("alone", A=person)
    else:
        told.tell("flavour")


def same_place(told: Teller, first: str, second: str) -> bool:
    """Say whether both people are known to be in the same place."""
    place = told.world.place_of.get(first)
    return place is not None and place == told.world.place_of.get(second)


def wander(told: Teller, people: list[str]) -> None:
    """Let someone do something that can be done now: walk, take, put down, give."""
    rng, world = told.rng, told.world
    person = rng.choice([one for one in people if one not in world.asleep])
    place = world.place_of.get(person)
    held = [thing for thing, who in world.holder_of.items() if who == person]
    here = [thing for thing, where in world.lies_in.items() if where == place]
    others = [one for one in people if one != person and same_place(told, person, one)]
    choices = ["go"] * 2
    choices += ["put"] if held and place else []
    choices += ["take"] * 2 if here else []
    choices += ["give"] * 3 if held and others else []
    kind = rng.choice(choices)
    if kind == "go":
        known = sorted(world.places_seen - {place or ""})
        target = rng.choice(known) if known and rng.random() < 0.7 else told.new_place()
        told.tell("go", A=person, p=target)
    elif kind == "put":
        told.tell("put", A=person, x=rng.choice(held), p=str(place))
    elif kind == "take":
        told.tell("take", A=person, x=rng.choice(here))
    else:
        told.tell("give", A=person, B=rng.choice(others), x=rng.choice(held))

"""Drills for looking up: who holds which thing, when several people hold several.

In most stories only one person holds anything, so a network can answer "Who has the drum?" without reading which thing
was asked for, and learns to (measured: 98 % right with one holder, 46 % with two). Here the thing decides. Pairs come
first, since they are dense: one name to find for every few tokens. People in a room who keep giving come last.
"""

from __future__ import annotations

import random

from weights_tools.train import words
from weights_tools.train.questions import HELD, LIES, Question, questions_about
from weights_tools.train.stories import aside, same_place
from weights_tools.train.teller import Beat, Teller

MOST_THINGS = 6
PAIR_WEIGHT = 4.0

# How a thing comes to its holder, in one sentence in which the name stands before the thing.
_HAS = (
    "{A} had a {c} {x}.", "{A} carried a {c} {x}.", "{A} took along a {c} {x}.", "{A} had the {x}.",
    "{A} took the {x}.", "{A} picked up the {x}.", "{A} found a {c} {x}.",
)  # fmt: skip

_PAIR_STOCKS = (
    (words.NAMES, words.OBJECTS),
    (words.OBJECTS, words.PLACES),
    (words.COLOURS + words.NUMBERS, words.OBJECTS),
    (words.NAMES, words.PLACES),
)


def pair_list(rng: random.Random) -> list[tuple[str, float]]:
    """Pairs of words, then the same pairs in another order; one time in two the second word stands first."""
    left, right = rng.choice(_PAIR_STOCKS)
    count = min(2 + int(18 * rng.random() ** 1.5), len(left), len(right))
    pairs = list(zip(rng.sample(left, count), rng.sample(right, count), strict=True))
    pieces = [(f" {', '.join(f'{one} {other}' for one, other in pairs)}.", 0.0)]
    turned = rng.random() < 0.5
    rng.shuffle(pairs)
    for pair in pairs:
        shown, sought = reversed(pair) if turned else pair
        pieces += [(f" {shown}", 0.0), (f" {sought}", PAIR_WEIGHT), (",", 0.0)]
    return pieces


def holder_list(rng: random.Random) -> list[tuple[str, float]]:
    """Many people with a thing each, then who has which, in another order: as questions or in bare pairs."""
    count = 2 + int(10 * rng.random() ** 1.5)
    pairs = list(zip(rng.sample(words.NAMES, count), rng.sample(words.OBJECTS, count), strict=True))
    told_bare, asked_bare = rng.choice(((False, False), (False, False), (False, True), (True, False)))
    if told_bare:
        told = ", ".join(f"{name} {thing}" for name, thing in pairs) + "."
    else:
        pattern = rng.choice(_HAS)
        told = " ".join(pattern.format(A=name, x=thing, c=rng.choice(words.COLOURS)) for name, thing in pairs)
    pieces = [(f" The story: {told}", 0.05)]
    rng.shuffle(pairs)
    gap = rng.choice(("", "\n"))
    for name, thing in pairs:
        if asked_bare:
            pieces += [(f" {thing}", 0.0), (f" {name}", PAIR_WEIGHT), (",", 0.0)]
        else:
            opening = rng.choice(("Who has", "Where is"))
            pieces += [(f"{gap} Question: {opening} the {thing}?{gap} Answer:", 0.05)]
            pieces += [(f" The {thing} is with", 0.1), (f" {name}", PAIR_WEIGHT), (".", 0.1)]
    return pieces


def first_holders(rng: random.Random) -> tuple[list[Beat], list[Question]]:
    """People in a few places, each with new things; a question about every thing."""
    told = Teller(rng)
    count = rng.choice((2, 2, 3, 3, 4, 5))
    for _ in range(count):
        _enter(told, told.new_place() if rng.random() < 0.5 else None)
        if rng.random() < 0.3:
            aside(told)
    people = list(told.world.kind_of)
    owners = people + rng.choices(people, k=rng.randint(0, MOST_THINGS - count))
    rng.shuffle(owners)
    for owner in owners:
        told.tell("has_new", A=owner, x=told.new_object(), c=rng.choice(words.COLOURS))
        if rng.random() < 0.2:
            aside(told)
    questions = [one for one in questions_about(told.world) if one.sort in ("who has it", HELD, "colour")]
    things = list(told.world.holder_of)
    rng.shuffle(things)
    return told.beats, [
        rng.choice([one for one in questions if f" {thing}?" in one.text]) for thing in things
    ]


def exchanges(rng: random.Random) -> list[tuple[list[Beat], list[Question]]]:
    """People in one room who get, give, swap, put down and take things; questions after every few events."""
    told = Teller(rng)
    place = told.new_place()
    for _ in range(rng.choice((2, 2, 3, 3, 4))):
        _enter(told, place)
    parts: list[tuple[list[Beat], list[Question]]] = []
    start, blocks = 0, rng.randint(3, 8)
    while blocks > 0 or not parts:  # at first there may be no thing to ask for
        blocks -= 1
        for _ in range(rng.randint(1, 4)):
            _exchange(told)
            if rng.random() < 0.15:
                aside(told)
        asked = _about_things(rng, questions_about(told.world))
        if asked:
            parts.append((told.beats[start:], asked))
            start = len(told.beats)
    return parts


def _about_things(rng: random.Random, questions: list[Question]) -> list[Question]:
    things = [one for one in questions if one.sort in ("who has it", LIES, HELD)]
    others = [one for one in questions if one not in things]
    if not things:
        return []
    asked = rng.sample(things, min(len(things), rng.randint(2, 4)))
    asked += rng.sample(others, 1) if others and rng.random() < 0.3 else []
    rng.shuffle(asked)
    return asked


def _enter(told: Teller, place: str | None) -> None:
    """Bring in a person, in a given place or in one that the story knows."""
    name, kind = told.new_person()
    known = sorted(told.world.places_seen)
    where = place or (told.rng.choice(known) if known else told.new_place())
    if told.beats:
        told.tell("enter_in", A=name, K=kind, p=where)
    else:
        told.tell("enter", A=name, K=kind)
        told.tell("at", A=name, p=where)


def _exchange(told: Teller) -> None:
    """Let something happen to a thing, chosen among what can happen now to a person chosen at random."""
    rng, world = told.rng, told.world
    person = rng.choice(list(world.kind_of))
    place = world.place_of[person]
    others = [one for one in world.kind_of if one != person and same_place(told, person, one)]
    held = [thing for thing, who in world.holder_of.items() if who == person]
    theirs = [thing for thing, who in world.holder_of.items() if who in others]
    here = [thing for thing, where in world.lies_in.items() if where == place]
    new = len(world.colour_of) < MOST_THINGS
    choices = [
        *(["has_new", "has_new", "find_new", "find_new", "lies_new"] if new else []),
        *(["give", "give", "give", "ask_yes"] if held and others else []),
        *(["swap"] if held and theirs else []),
        *(["put", "has"] if held else []),
        *(["take", "take"] if here else []),
        "go",
    ]
    kind = rng.choice(choices)
    colour = {"c": rng.choice(words.COLOURS)}
    if kind == "has_new":
        told.tell(kind, A=person, x=told.new_object(), **colour)
    elif kind == "find_new":
        told.tell(kind, A=person, x=told.new_object(), p=place, **colour)
    elif kind == "lies_new":
        told.tell(kind, x=told.new_object(), p=place, **colour)
    elif kind == "give":
        told.tell(kind, A=person, B=rng.choice(others), x=rng.choice(held))
    elif kind == "ask_yes":
        told.tell(kind, A=rng.choice(others), B=person, x=rng.choice(held))
    elif kind == "swap":
        wanted = rng.choice(theirs)
        told.tell(kind, A=person, B=world.holder_of[wanted], x=rng.choice(held), y=wanted)
    elif kind == "put":
        told.tell(kind, A=person, x=rng.choice(held), p=place)
    elif kind == "has":
        told.tell(kind, A=person, x=rng.choice(held))
    elif kind == "take":
        told.tell(kind, A=person, x=rng.choice(here))
    else:
        known = sorted(world.places_seen - {place})
        told.tell("go", A=person, p=rng.choice(known) if known and rng.random() < 0.8 else told.new_place())

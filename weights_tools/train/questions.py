"""Questions about a world and their true answers, each with the number of names that could be guessed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weights_tools.train.asking import Asked
from weights_tools.train.words import NUMBERS, PRONOUNS, gender_of
from weights_tools.train.world import World

LIES, HELD = "where is the object", "where is the held object"


@dataclass(frozen=True)
class Question:
    """A question, its answer as a sentence, the word that decides, and how many words of its sort were mentioned."""

    sort: str
    text: str
    answer: str
    key: str
    candidates: int

    @property
    def asked(self) -> Asked:
        """The question with its answer and the word that decides."""
        return Asked(self.text, self.answer, self.key)


def questions_about(world: World) -> list[Question]:
    """List every question that the world can answer, in a fixed order."""
    return [*_who(world), *_where(world), *_names(world), *_counts(world), *_rest(world)]


def _who(world: World) -> Iterator[Question]:
    people = len(world.kind_of)
    for thing, who in world.holder_of.items():
        yield Question("who has it", f"Who has the {thing}?", f"The {thing} is with {who}.", who, people)
    for thing, giver in world.given_by.items():
        to = world.holder_of.get(thing)
        if to:
            yield Question(
                "who gave", f"Who gave the {thing} to {to}?", f"{giver} gave it to {to}.", giver, people
            )
    for thing, who in world.lost_by.items():
        yield Question("who lost it", f"Who lost the {thing}?", f"{who} lost the {thing}.", who, people)


def _where(world: World) -> Iterator[Question]:
    places = len(world.places_seen)
    for who, place in world.place_of.items():
        yield Question("where is the person", f"Where is {who}?", f"{who} is in the {place}.", place, places)
    for thing, place in world.lies_in.items():
        text = f"Where is the {thing}?"
        yield Question(LIES, text, f"The {thing} is in the {place}.", place, places)
    for thing, who in world.holder_of.items():
        told = f"The {thing} is with {who}."
        yield Question(HELD, f"Where is the {thing}?", told, who, len(world.kind_of))


def _names(world: World) -> Iterator[Question]:
    for name, kind in world.kind_of.items():
        text = f"What is the name of the {kind}?"
        yield Question("name", text, f"The {kind} is called {name}.", name, len(world.kind_of))
        yield Question("kind", f"Who is {name}?", f"{name} is a {kind}.", kind, len(world.kind_of))


def _counts(world: World) -> Iterator[Question]:
    for (who, items), number in world.count_of.items():
        word = NUMBERS[number]
        yield Question("count", f"How many {items} does {who} have?", f"{who} has {word} {items}.", word, 1)


def _rest(world: World) -> Iterator[Question]:
    colours = len(set(world.colour_of.values()))
    for thing, colour in world.colour_of.items():
        if thing not in world.gone:
            text = f"What colour is the {thing}?"
            yield Question("colour", text, f"The {thing} is {colour}.", colour, colours)
    if world.day:
        yield Question("day", "What day is it?", f"It is {world.day}.", world.day, 1)
    for who, (why, thing) in world.reason_of.items():
        he, _, _ = PRONOUNS[gender_of(who)]
        if why == "sad_lost" and world.lost_by.get(thing) == who:
            yield Question(
                "why", f"Why is {who} sad?", f"Because {he} lost the {thing}.", thing, len(world.colour_of)
            )
        elif why == "happy_has" and world.holder_of.get(thing) == who:
            yield Question(
                "why", f"Why is {who} happy?", f"Because {he} has the {thing}.", thing, len(world.colour_of)
            )

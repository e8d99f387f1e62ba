"""The state behind a story and the rules that every story keeps.

An event is a kind ("go", "give", …) with roles ("A": a person, "x": an object, "p": a place, …). `World.apply`
checks the event against the state, raises `RuleBrokenError` if it cannot happen, and otherwise changes the state.
The teller uses it to tell, the checker to judge; neither sentences nor random choices are known here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Roles = dict[str, str]


class RuleBrokenError(Exception):
    """A story says something that cannot be so; the message says what."""


@dataclass
class World:
    """What is true at one moment of a story. Places, people and objects are named by their words."""

    kind_of: dict[str, str] = field(default_factory=dict)
    place_of: dict[str, str] = field(default_factory=dict)
    holder_of: dict[str, str] = field(default_factory=dict)
    lies_in: dict[str, str] = field(default_factory=dict)
    colour_of: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    asleep: set[str] = field(default_factory=set)
    count_of: dict[tuple[str, str], int] = field(default_factory=dict)
    lost_by: dict[str, str] = field(default_factory=dict)
    given_by: dict[str, str] = field(default_factory=dict)
    wish_of: dict[str, str] = field(default_factory=dict)
    reason_of: dict[str, tuple[str, str]] = field(default_factory=dict)
    day: str | None = None
    sky: str | None = None
    subject: str | None = None
    places_seen: set[str] = field(default_factory=set)
    ended: bool = False

    def apply(self, kind: str, roles: Roles) -> None:
        """Check one event and let it happen. Raises `RuleBrokenError` and then leaves the state as it was."""
        require(not self.ended, "the story goes on after its end")
        for role in "ABC":
            if role in roles and kind not in ENTRANCES.get(role, ()):
                require(roles[role] in self.kind_of, f"{roles[role]} was never introduced")
                require(roles[role] not in self.asleep or kind == "wake", f"{roles[role]} is asleep")
        people = [roles[role] for role in "ABC" if role in roles]
        require(len(set(people)) == len(people), "one person in two roles")
        RULES[kind](self, roles)
        self.places_seen.update(roles[role] for role in "pq" if role in roles)
        self.subject = roles.get("A", self.subject if kind in KEEPS_SUBJECT else None)

    def where_is(self, thing: str) -> str | None:
        """Give the place of an object, lying or carried; None if no sentence told it."""
        holder = self.holder_of.get(thing)
        return self.place_of.get(holder) if holder else self.lies_in.get(thing)

    def knows(self, thing: str) -> bool:
        """Say whether an object was introduced."""
        return thing in self.colour_of


Rule = Callable[[World, Roles], None]
RULES: dict[str, Rule] = {}
ENTRANCES = {"A": ("enter", "enter_in"), "B": ("meet", "enter_two")}
KEEPS_SUBJECT: set[str] = set()


def rule(kind: str) -> Callable[[Rule], Rule]:
    """Enter a function as the rule of a kind of event."""

    def enter(function: Rule) -> Rule:
        RULES[kind] = function
        return function

    return enter


def require(condition: bool, otherwise: str) -> None:
    """Raise `RuleBrokenError` with the given sentence unless the condition holds."""
    if not condition:
        raise RuleBrokenError(otherwise)


def require_has(world: World, person: str, thing: str) -> None:
    """Raise unless the person holds the object."""
    require(world.holder_of.get(thing) == person, f"{person} does not have the {thing}")


def require_together(world: World, first: str, second: str) -> None:
    """Raise unless both people are known to be in the same place."""
    place = world.place_of.get(first)
    require(place is not None and place == world.place_of.get(second), f"{first} and {second} are apart")


def require_here(world: World, person: str, thing: str) -> None:
    """Raise unless the object lies where the person is."""
    require(thing in world.lies_in, f"the {thing} lies nowhere")
    require(world.lies_in[thing] == world.place_of.get(person), f"the {thing} is not where {person} is")


def hand_over(world: World, thing: str, to: str) -> None:
    """Move an object into someone's hands."""
    giver = world.holder_of.get(thing)
    world.lies_in.pop(thing, None)
    world.holder_of[thing] = to
    world.lost_by.pop(thing, None)
    if giver:
        world.given_by[thing] = giver
    else:
        world.given_by.pop(thing, None)
    if world.wish_of.get(to) == thing:
        del world.wish_of[to]


def lay_down(world: World, thing: str, place: str) -> None:
    """Leave an object in a place."""
    world.holder_of.pop(thing, None)
    world.lies_in[thing] = place

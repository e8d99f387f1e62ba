"""The rules of the small world, one function for each kind of event. Importing this module fills `world.RULES`."""

from __future__ import annotations

from weights_tools.train.words import DAYS, EDIBLE, FOODS, NUMBERS, PEOPLE_KINDS, gender_of
from weights_tools.train.world import (
    KEEPS_SUBJECT,
    Roles,
    World,
    hand_over,
    lay_down,
    require,
    require_has,
    require_here,
    require_together,
    rule,
)

KEEPS_SUBJECT.update({"flavour"})


def enter(world: World, name: str, kind: str) -> None:
    """Bring a new person into the story."""
    require(name not in world.kind_of, f"{name} was introduced before")
    require(kind not in PEOPLE_KINDS or gender_of(name) == kind, f"{name} cannot be a {kind}")
    require(kind not in world.kind_of.values(), f"a second {kind}")
    world.kind_of[name] = kind


@rule("enter")
def _enter(world: World, roles: Roles) -> None:
    enter(world, roles["A"], roles["K"])


@rule("enter_in")
def _enter_in(world: World, roles: Roles) -> None:
    enter(world, roles["A"], roles["K"])
    world.place_of[roles["A"]] = roles["p"]


@rule("meet")
def _meet(world: World, roles: Roles) -> None:
    place = world.place_of.get(roles["A"])
    require(place == roles["p"], f"{roles['A']} is not in the {roles['p']}")
    enter(world, roles["B"], roles["K"])
    world.place_of[roles["B"]] = roles["p"]


@rule("at")
def _at(world: World, roles: Roles) -> None:
    known = world.place_of.setdefault(roles["A"], roles["p"])
    require(known == roles["p"], f"{roles['A']} is in the {known}, not in the {roles['p']}")


@rule("go")
def _go(world: World, roles: Roles) -> None:
    require(world.place_of.get(roles["A"]) != roles["p"], f"{roles['A']} is already in the {roles['p']}")
    world.place_of[roles["A"]] = roles["p"]


@rule("go_from")
def _go_from(world: World, roles: Roles) -> None:
    require(world.place_of.get(roles["A"]) == roles["q"], f"{roles['A']} is not in the {roles['q']}")
    require(roles["p"] != roles["q"], "from a place to itself")
    world.place_of[roles["A"]] = roles["p"]


@rule("go_both")
def _go_both(world: World, roles: Roles) -> None:
    require_together(world, roles["A"], roles["B"])
    _go(world, roles)
    world.place_of[roles["B"]] = roles["p"]


@rule("join")
def _join(world: World, roles: Roles) -> None:
    require(world.place_of.get(roles["B"]) == roles["p"], f"{roles['B']} is not in the {roles['p']}")
    _go(world, roles)


@rule("shelter")
def _shelter(world: World, roles: Roles) -> None:
    require(world.sky == "rainy", "it is not raining")
    _go(world, roles)


@rule("has_new")
def _has_new(world: World, roles: Roles) -> None:
    require(not world.knows(roles["x"]), f"a second {roles['x']}")
    world.colour_of[roles["x"]] = roles["c"]
    world.holder_of[roles["x"]] = roles["A"]


@rule("lies_new")
def _lies_new(world: World, roles: Roles) -> None:
    require(not world.knows(roles["x"]), f"a second {roles['x']}")
    world.colour_of[roles["x"]] = roles["c"]
    world.lies_in[roles["x"]] = roles["p"]


@rule("find_new")
def _find_new(world: World, roles: Roles) -> None:
    require(world.place_of.get(roles["A"]) == roles["p"], f"{roles['A']} is not in the {roles['p']}")
    _has_new(world, roles)


@rule("has")
def _has(world: World, roles: Roles) -> None:
    require_has(world, roles["A"], roles["x"])


@rule("take")
def _take(world: World, roles: Roles) -> None:
    require_here(world, roles["A"], roles["x"])
    hand_over(world, roles["x"], roles["A"])


@rule("take_in")
def _take_in(world: World, roles: Roles) -> None:
    require(world.place_of.get(roles["A"]) == roles["p"], f"{roles['A']} is not in the {roles['p']}")
    _take(world, roles)


@rule("put")
def _put(world: World, roles: Roles) -> None:
    require_has(world, roles["A"], roles["x"])
    require(world.place_of.get(roles["A"]) == roles["p"], f"{roles['A']} is not in the {roles['p']}")
    lay_down(world, roles["x"], roles["p"])


@rule("lose")
def _lose(world: World, roles: Roles) -> None:
    _put(world, roles)
    world.lost_by[roles["x"]] = roles["A"]
    world.reason_of[roles["A"]] = ("lost", roles["x"])


@rule("give")
def _give(world: World, roles: Roles) -> None:
    require_has(world, roles["A"], roles["x"])
    require_together(world, roles["A"], roles["B"])
    hand_over(world, roles["x"], roles["B"])


@rule("swap")
def _swap(world: World, roles: Roles) -> None:
    require_has(world, roles["B"], roles["y"])
    _give(world, roles)
    hand_over(world, roles["y"], roles["A"])


@rule("ask_yes")
def _ask_yes(world: World, roles: Roles) -> None:
    _give(world, {"A": roles["B"], "B": roles["A"], "x": roles["x"]})


@rule("ask_no")
def _ask_no(world: World, roles: Roles) -> None:
    require_has(world, roles["B"], roles["x"])
    require_together(world, roles["A"], roles["B"])


@rule("want")
def _want(world: World, roles: Roles) -> None:
    require(world.knows(roles["x"]), f"there is no {roles['x']}")
    require(roles["x"] not in world.gone, f"the {roles['x']} is gone")
    require(world.holder_of.get(roles["x"]) != roles["A"], f"{roles['A']} has the {roles['x']}")
    world.wish_of[roles["A"]] = roles["x"]


@rule("tell_has")
def _tell_has(world: World, roles: Roles) -> None:
    require_together(world, roles["A"], roles["B"])
    require_has(world, roles["B"], roles["x"])


@rule("tell_lies")
def _tell_lies(world: World, roles: Roles) -> None:
    require_together(world, roles["A"], roles["B"])
    _still_lies(world, roles)


@rule("still_lies")
def _still_lies(world: World, roles: Roles) -> None:
    require(world.lies_in.get(roles["x"]) == roles["p"], f"the {roles['x']} does not lie in the {roles['p']}")


@rule("sad_lost")
def _sad_lost(world: World, roles: Roles) -> None:
    require(world.lost_by.get(roles["x"]) == roles["A"], f"{roles['A']} did not lose the {roles['x']}")
    world.reason_of[roles["A"]] = ("sad_lost", roles["x"])


@rule("happy_has")
def _happy_has(world: World, roles: Roles) -> None:
    require_has(world, roles["A"], roles["x"])
    world.reason_of[roles["A"]] = ("happy_has", roles["x"])


@rule("thank")
def _thank(world: World, roles: Roles) -> None:
    require_has(world, roles["A"], roles["x"])
    require_together(world, roles["A"], roles["B"])
    require(world.given_by.get(roles["x"]) == roles["B"], f"{roles['B']} did not give the {roles['x']}")


@rule("paint")
def _paint(world: World, roles: Roles) -> None:
    require_has(world, roles["A"], roles["x"])
    require(roles["x"] not in FOODS, "painted food")
    require(world.colour_of[roles["x"]] != roles["c"], f"the {roles['x']} is {roles['c']} already")
    world.colour_of[roles["x"]] = roles["c"]


@rule("colour")
def _colour(world: World, roles: Roles) -> None:
    known = world.colour_of.get(roles["x"])
    require(known == roles["c"], f"the {roles['x']} is not {roles['c']}")


@rule("break")
def _break(world: World, roles: Roles) -> None:
    require_has(world, roles["A"], roles["x"])
    require(roles["x"] not in FOODS and roles["x"] not in world.broken, f"the {roles['x']} cannot break")
    world.broken.add(roles["x"])
    world.reason_of[roles["A"]] = ("broke", roles["x"])


@rule("mend")
def _mend(world: World, roles: Roles) -> None:
    require_has(world, roles["A"], roles["x"])
    require(roles["x"] in world.broken, f"the {roles['x']} is not broken")
    world.broken.discard(roles["x"])


@rule("eat")
def _eat(world: World, roles: Roles) -> None:
    require_has(world, roles["A"], roles["x"])
    require(roles["x"] in FOODS, f"nobody eats a {roles['x']}")
    del world.holder_of[roles["x"]]
    world.gone.add(roles["x"])


@rule("play")
def _play(world: World, roles: Roles) -> None:
    require_together(world, roles["A"], roles["B"])
    require(roles["x"] not in FOODS, "played with food")
    require(world.holder_of.get(roles["x"]) in (roles["A"], roles["B"]), f"neither has the {roles['x']}")


@rule("together")
def _together(world: World, roles: Roles) -> None:
    require_together(world, roles["A"], roles["B"])


@rule("alone")
def _alone(world: World, roles: Roles) -> None:
    del world, roles


@rule("sleep")
def _sleep(world: World, roles: Roles) -> None:
    world.asleep.add(roles["A"])


@rule("wake")
def _wake(world: World, roles: Roles) -> None:
    require(roles["A"] in world.asleep, f"{roles['A']} is awake")
    world.asleep.discard(roles["A"])


@rule("count")
def _count(world: World, roles: Roles) -> None:
    number = NUMBERS.index(roles["n"])
    known = world.count_of.setdefault((roles["A"], roles["i"]), number)
    require(known == number, f"{roles['A']} has {NUMBERS[known]} {roles['i']}, not {roles['n']}")


@rule("more")
def _more(world: World, roles: Roles) -> None:
    _change_count(world, roles, NUMBERS.index(roles["m"]))


@rule("fewer")
def _fewer(world: World, roles: Roles) -> None:
    require(roles["i"] in EDIBLE, f"nobody eats {roles['i']}")
    _change_count(world, roles, -NUMBERS.index(roles["m"]))


@rule("share")
def _share(world: World, roles: Roles) -> None:
    require_together(world, roles["A"], roles["B"])
    require((roles["B"], roles["i"]) not in world.count_of, f"{roles['B']} had {roles['i']} already")
    _change_count(world, roles, -NUMBERS.index(roles["m"]))
    world.count_of[roles["B"], roles["i"]] = NUMBERS.index(roles["m"])


def _change_count(world: World, roles: Roles, change: int) -> None:
    key = (roles["A"], roles["i"])
    require(key in world.count_of, f"{roles['A']} was not said to have {roles['i']}")
    total = world.count_of[key] + change
    require(NUMBERS.index(roles["k"]) == total, f"the total is {total}, not {roles['k']}")
    world.count_of[key] = total


@rule("day")
def _day(world: World, roles: Roles) -> None:
    require(world.day in (None, roles["d"]), f"it is {world.day}")
    world.day = roles["d"]


@rule("next_day")
def _next_day(world: World, roles: Roles) -> None:
    require(world.day is not None, "no day was told before")
    following = DAYS[(DAYS.index(str(world.day)) + 1) % len(DAYS)]
    require(following == roles["d"], f"after {world.day} comes {following}")
    world.day = roles["d"]
    world.sky = None


@rule("sky")
def _sky(world: World, roles: Roles) -> None:
    require(world.sky in (None, roles["w"]), f"it is {world.sky}")
    world.sky = roles["w"]


@rule("flavour")
def _flavour(world: World, roles: Roles) -> None:
    del world, roles


@rule("end")
def _end(world: World, roles: Roles) -> None:
    del roles
    world.ended = True

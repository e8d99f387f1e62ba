"""The path of a value, `[request n/]stage step/[sequence n/]layer n/[head n/]part.name[#k]`, taken apart and looked up.

What a path leaves out fits everything, as long as one value remains.
"""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from haaw.errors import BadInputError
from haaw.tracing.event import Event, Step
from haaw.tracing.outputs import Named, events_in, named_outputs
from haaw.tracing.steps import one_of, split_piece, step_name, steps_like

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace

PLACES = ("request", "sequence", "layer", "head")
MOST_MATCHES = 200


class ValuePath(NamedTuple):
    """A path taken apart; None for what it leaves out. `item` is the k of `#k`, from 1 on."""

    request: int | None
    stage: str | None
    step: int | None
    sequence: int | None
    layer: int | None
    head: int | None
    part: str | None
    name: str
    item: int | None


class Found(NamedTuple):
    """What a path stands for: an output of an event, whole or (`head`) one head of it."""

    path: str
    event: Event
    output: int
    head: int | None


def parse_path(text: str) -> ValuePath:
    """A path taken apart. Errors: `BadInputError` for what is none."""
    if not isinstance(text, str) or not text.strip() or len(text) > 500:
        raise BadInputError(
            f'a path is {text!r:.60}; it is a text such as "decode 5/layer 3/attention.weights"'
        )
    *front, last = text.strip().split("/")
    places: dict[str, int | None] = dict.fromkeys(PLACES)
    stage: str | None = None
    step: int | None = None
    for piece in front:
        word, number = split_piece(piece)
        if word in PLACES:
            if number is None or places[word] is not None:
                raise BadInputError(
                    f'the path {text!r:.80} needs one number behind "{word}", as in "{word} 0"'
                )
            places[word] = number
        elif stage is None:
            stage, step = word, number
        else:
            raise BadInputError(f'the path {text!r:.80} names two stages, "{stage}" and "{word}"')
    name, hash_sign, item = last.strip().partition("#")
    if hash_sign and not re.fullmatch(r"[1-9]\d{0,5}", item):
        raise BadInputError(
            f"the path {text!r:.80} ends with #{item:.20}; behind # stands a number from 1 on"
        )
    part, dot, name_behind = name.partition(".")
    if not (name_behind if dot else name):
        raise BadInputError(
            f'the path {text!r:.80} names no value; at its end stands one, as in "attention.weights"'
        )
    return ValuePath(
        places["request"], stage, step, places["sequence"], places["layer"], places["head"],
        part if dot else None, name_behind if dot else name, int(item) if hash_sign else None,
    )  # fmt: skip


def find(trace: "Trace", text: str, *, head: int | None = None, request: int | None = None) -> Found:
    """The value that a path stands for.

    Errors: `BadInputError` for one that is not there, with what is nearest, or for several, with the choices.
    """
    path = parse_path(text)
    if request is not None:
        path = path._replace(request=_agreed("request", path.request, request, text))
    if path.head is not None and head is None:
        head = path.head
    head = _agreed("head", path.head, head, text) if head is not None else None
    steps = steps_like(trace, path.request, path.stage, path.step)
    matches = list(_matches(trace, steps, path._replace(head=None), use_op_names=False))
    matches = matches or list(_matches(trace, steps, path._replace(head=None), use_op_names=True))
    if not matches:
        raise BadInputError(_unknown(trace, steps, text))
    exact = [each for each in matches if _is_exact(each.event, path)]  # goes before what only fits
    return _chosen(exact or matches, path.item, head, text)


def _is_exact(event: Event, path: ValuePath) -> bool:
    """Whether a path leaves out nothing of where an event stands, but perhaps the request and the head."""
    place = event.place
    return (place.stage, place.step, place.sequence, place.layer, place.part) == (
        path.stage, path.step, path.sequence, path.layer, path.part or "",
    )  # fmt: skip


def _agreed(what: str, said: int | None, given: int | None, text: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise BadInputError(f"{what} is {given!r:.40}; it is a whole number from 0 on")
    if said not in (None, given):
        raise BadInputError(f"the path {text!r:.80} names the {what} {said}, and {what}= the {what} {given}")
    return given


def _matches(trace: "Trace", steps: list[Step], path: ValuePath, *, use_op_names: bool) -> Iterator[Named]:
    """Outputs that fit, under paths without a number; a few hundred at most."""
    found = 0
    for step in steps:
        for event in events_in(trace, step, sequence=path.sequence, layer=path.layer, part=path.part):
            for output, made in enumerate(event.outputs):
                if made.name == path.name or (use_op_names and event.name == path.name):
                    yield Named(
                        event.place.path(made.name, with_request=trace.several_requests), event, output
                    )
                    found += 1
        if found > MOST_MATCHES:
            return


def _chosen(matches: list[Named], item: int | None, head: int | None, text: str) -> Found:
    own = [each for each in matches if each.event.place.head is not None]
    selects = None
    if head is not None:
        if own:
            matches = [each for each in own if each.event.place.head == head]
            if not matches:
                raise BadInputError(f"{text!r:.80} has no head {head}; it has the heads 0 to {len(own) - 1}")
        else:
            selects = head
    paths = list(dict.fromkeys(each.path for each in matches))
    if len(paths) > 1:
        raise BadInputError(f"{text!r:.80} may be {one_of(paths)}; say which{_how(matches)}")
    if item is not None and item > len(matches):
        raise BadInputError(f"there is no {paths[0]}#{item}; this name is there {_times(len(matches))}")
    if item is None and len(matches) > 1:
        choices = [f"#{place} ({_what(each)})" for place, each in enumerate(matches, 1)]
        raise BadInputError(
            f"{paths[0]} is there {_times(len(matches))}: {', '.join(choices[:8])}"
            f"{' …' if len(choices) > 8 else ''}; write {paths[0]}#1 to #{len(matches)}"
        )
    chosen = matches[(item or 1) - 1]
    if selects is not None:
        _check_head(chosen, selects)
    full = paths[0] if len(matches) == 1 else f"{paths[0]}#{item}"
    return Found(full, chosen.event, chosen.output, selects)


def _how(matches: list[Named]) -> str:
    heads = {each.event.place.head for each in matches}
    return ", or choose a head with head=" if len(heads) > 1 else ""


def _times(number: int) -> str:
    return "once" if number == 1 else "twice" if number == 2 else f"{number} times"


def _what(named: Named) -> str:
    event, shape = named.event, named.event.outputs[named.output].window.layout.shape
    where = f", {event.file}:{event.line}" if event.line else ""
    return f"{event.name} {shape}{where}"


def _check_head(named: Named, head: int) -> None:
    made = named.event.outputs[named.output]
    if "H" not in made.axes:
        raise BadInputError(
            f"{named.path} has no heads: its axes are {made.axes or 'not named'}; leave head= out"
        )
    heads = made.window.layout.shape[made.axes.index("H")]
    if head >= heads:
        raise BadInputError(f"{named.path} has no head {head}; it has the heads 0 to {heads - 1}")


def _unknown(trace: "Trace", steps: list[Step], text: str) -> str:
    known: list[str] = []
    place = text.strip().strip("/")
    for step in sorted(steps, key=lambda each: not f"{place}/".startswith(f"{step_name(trace, each)}/")):
        known = [each.path for each in named_outputs(trace, step)]
        if known:
            break
    where = steps[0].name if len(steps) == 1 else "this trace"
    if not known:
        return f"there is no value {text!r:.80}: {where} has no values at all, only facts"
    inside = [path for path in known if path.startswith(f"{place}/")]
    if inside:
        return f"{text!r:.80} is a place and no value; values in it are such as {one_of(inside, 3)}"
    near = get_close_matches(text, known, n=3, cutoff=0.5)
    hint = f"did you mean {one_of(near)}?" if near else f"there are such as {one_of(known, 3)}"
    return f"there is no value {text!r:.80} in {where}; {hint}"

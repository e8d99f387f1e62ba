"""One rule of what a trace keeps: `full: op=softmax layer=3,7-9 step=5- stage=decode`.

Places are whole numbers from 0 on: one, a range with both ends in it, an open range, or several with commas. Steps
count within their stage: the first prefill step is 0, the first decode step 1.
"""

import re
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from haaw.errors import BadInputError
from haaw.ops.breakpoints import STAGES
from haaw.ops.op import OPS
from haaw.ops.vocabulary import all_operations
from haaw.tracing.names_near import nearest

Ranges = tuple[tuple[int, int | None], ...]
RULE_LEVELS = ("full", "replayable")
FIELDS = ("op", "stage", "step", "layer", "head", "part")
NAMED, COUNTED = ("op", "stage", "part"), ("step", "layer", "head")


@dataclass(frozen=True)
class Rule:
    """Keeps (`full`) or does not keep (`replayable`) the results of the operations that fit all its fields.

    Fields may be single values, lists, ranges (`range(5, 9)`), or the words of the text form; None fits all.
    An operation over all heads together holds each of them, so a rule for one head keeps it whole.
    Errors: `BadInputError` for unknown operations and stages, and for what is no place.
    """

    level: str = "full"
    _: KW_ONLY
    op: Any = None
    stage: Any = None
    step: Any = None
    layer: Any = None
    head: Any = None
    part: Any = None
    names: Literal["known", "any"] = field(default="known", repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.level not in RULE_LEVELS:
            more = " (levels without values are for whole runs)" if self.level == "events" else ""
            raise BadInputError(
                f"a rule begins with {self.level!r:.40}; it must be full or replayable{more}"
                f"{nearest(self.level, RULE_LEVELS)}"
            )
        for name in NAMED:
            object.__setattr__(self, name, _names(name, getattr(self, name)))
        for name in COUNTED:
            object.__setattr__(self, name, _ranges(name, getattr(self, name)))
        if self.names == "known":
            _check_names("operation", self.op, all_operations())
            _check_names("stage", self.stage, STAGES)
        if all(getattr(self, name) is None for name in FIELDS):
            raise BadInputError(f"a rule needs at least one of {', '.join(FIELDS)}, as in: full: op=softmax")

    def fits_place(
        self, op: str, stage: str | None, layer: int | None, head: int | None, part: str | None
    ) -> bool:
        """Whether an operation in a place fits, at some step at least."""
        return (
            (self.op is None or op in self.op)
            and (self.stage is None or stage in self.stage)
            and (self.part is None or part in self.part)
            and (self.layer is None or _within(layer, self.layer))
            and (self.head is None or _within(head, self.head) or (head is None and _holds_all_heads(op)))
        )

    def fits_step(self, step: int | None) -> bool:
        """Whether the step fits."""
        return self.step is None or _within(step, self.step)

    def check_model(self, *, layers: int, heads: int) -> None:
        """Errors: `BadInputError` for a layer or a head that is not there."""
        for name, ranges, count in (("layer", self.layer, layers), ("head", self.head, heads)):
            for first, last in ranges or ():
                beyond = first if last is None else last
                if beyond >= count:
                    raise BadInputError(
                        f'the rule "{self}" names the {name} {beyond}; this model has the {name}s 0 to {count - 1}'
                    )

    def __str__(self) -> str:
        said = [f"{name}={_written(value)}" for name in FIELDS if (value := getattr(self, name)) is not None]
        return f"{self.level}: {' '.join(said)}"


def parse_rule(text: str, *, names: Literal["known", "any"] = "known") -> Rule:
    """A rule from its text. Without a level in front it keeps.

    Errors: `BadInputError` for what is not understood.
    """
    level, colon, rest = text.partition(":")
    if not colon:
        level, rest = "full", text
    fields: dict[str, Any] = {}
    for word in rest.split():
        name, equals, value = word.partition("=")
        if not equals or not value or name not in FIELDS:
            raise BadInputError(
                f"the rule {text!r:.80} has {word!r:.40}; after the colon stand {', '.join(FIELDS)}, each as "
                f"NAME=VALUE without spaces in it{nearest(name, FIELDS) if equals else ''}"
            )
        if name in fields:
            raise BadInputError(
                f"the rule {text!r:.80} names {name} twice; write several values with commas: {name}=1,2"
            )
        fields[name] = value
    return Rule(level.strip(), names=names, **fields)


def _names(what: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str):
        value = value.split(",")
    several = tuple(value) if isinstance(value, Iterable) else (value,)
    if not several or not all(isinstance(name, str) and name.isidentifier() for name in several):
        raise BadInputError(f"{what} is {value!r:.60}; it must be a name, or several")
    return tuple(dict.fromkeys(several))


def _ranges(what: str, value: Any) -> Ranges | None:
    if value is None:
        return None
    if isinstance(value, str):
        return tuple(_range(what, piece) for piece in value.split(","))
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    if isinstance(value, range) and value.step == 1 and 0 <= value.start < value.stop:
        return ((value.start, value.stop - 1),)
    found: list[tuple[int, int | None]] = []
    for each in value if isinstance(value, Iterable) else [None]:
        if isinstance(each, tuple) and len(each) == 2:  # from another rule
            first, last = each
        elif isinstance(each, range) and each.step == 1 and each:
            first, last = each.start, each.stop - 1
        else:
            first = last = each
        if type(first) is not int or not (last is None or type(last) is int) or first < 0:
            raise BadInputError(f"{what} is {value!r:.60}; {_PLACES}")
        found.append((first, last))
    if not found:
        raise BadInputError(f"{what} is {value!r:.60}; {_PLACES}")
    return tuple(found)


_RANGE = re.compile(r"(\d{1,9})(?:(-)(\d{1,9})?)?", re.ASCII)
_PLACES = "it must be a whole number from 0 on, a range such as 5-8 or 5-, or several of them with commas"


def _range(what: str, text: str) -> tuple[int, int | None]:
    if (found := _RANGE.fullmatch(text)) is None:
        raise BadInputError(f"{what} is {text!r:.40}; {_PLACES}")
    first, dash, last = found.groups()
    start, end = int(first), int(last) if last else None if dash else int(first)
    if end is not None and end < start:
        raise BadInputError(
            f"{what} is {text!r:.40}, a range that ends before it begins; write {last}-{first}"
        )
    return start, end


def _written(value: tuple[Any, ...]) -> str:
    return ",".join(each if isinstance(each, str) else _written_range(*each) for each in value)


def _written_range(first: int, last: int | None) -> str:
    return str(first) if first == last else f"{first}-{'' if last is None else last}"


def _within(number: int | None, ranges: Ranges) -> bool:
    return number is not None and any(
        first <= number and (last is None or number <= last) for first, last in ranges
    )


def _holds_all_heads(op: str) -> bool:
    """Whether a result of the operation has the axis H."""
    return op in OPS and any("H" in name.rpartition("_")[2] for name in OPS[op].out)


def _check_names(what: str, names: tuple[str, ...] | None, known: Iterable[str]) -> None:
    for name in names or ():
        if name not in known:
            raise BadInputError(
                f'there is no {what} "{name:.60}"{nearest(name, known) or "; there are: " + ", ".join(sorted(known))}'
            )

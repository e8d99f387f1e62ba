"""`trace.value`: a value by its path, from the file or computed again, and held against its hash."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from haaw.arrays import Array, to_host
from haaw.errors import BadInputError
from haaw.tracing.container import TraceDamagedError
from haaw.tracing.event import Event
from haaw.tracing.hashing import array_hash
from haaw.tracing.outputs import path_of
from haaw.tracing.paths import Found, find
from haaw.tracing.policy import rule_that_would_keep
from haaw.tracing.running import NotRecordedError

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace

Source = Literal["recorded", "recomputed"]
HashVerdict = Literal["identical", "differs", "not hashed"]

SAID = {
    "identical": "its hash is the recorded one",
    "differs": "its hash is NOT the recorded one",
    "not hashed": "no hash was recorded",
}


class ValueNotKeptError(BadInputError):
    """A value is neither in the file nor can it be computed again; the message names the rule that would keep it."""


@dataclass(frozen=True, eq=False, repr=False)
class Value:
    """A value of a trace: a read-only array and the letters of its axes.

    `source` says where it is from, `hash_verdict` how the whole result (all heads) compares with the recorded
    hash, `event` and `output` what made it. `head` is the one that was chosen of it.
    """

    path: str
    array: np.ndarray
    axes: str
    source: Source
    hash_verdict: HashVerdict
    event: Event
    output: int
    head: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self.array.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        made = self.array if dtype is None else self.array.astype(dtype)
        return made.copy() if copy else made

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: Any) -> Any:
        return self.array[index]

    def describe(self) -> Mapping[str, Any]:
        """Statistics, computed now in float64: least, greatest, mean, deviation, and what is not finite."""
        from haaw.tracing.value_display import statistics

        return statistics(self.array)

    def __str__(self) -> str:
        from haaw.tracing.value_display import value_text

        return value_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from haaw.tracing.value_display import value_html

        return value_html(self)


def fetch(
    trace: "Trace", what: "str | int | Event | Value", *, head: int | None = None, request: int | None = None
) -> Value:
    """The value of a path, or the first output of an event (or of its number).

    Errors: `BadInputError` for unknown or ambiguous paths, `ValueNotKeptError` where it cannot be had,
    `TraceDamagedError` where what the file keeps does not have its hash. A value that is computed again and does
    not have its hash comes with a warning.
    """
    if isinstance(what, Value):
        what = what.path
    if isinstance(what, str):
        return of_output(trace, find(trace, what, head=head, request=request))
    event = trace.event(int(what)) if isinstance(what, int | np.integer) else what
    if not isinstance(event, Event) or not event.outputs:
        raise BadInputError(f"{event!r:.80} has no value; give a path, or an operation or input")
    return of_output(trace, Found(path_of(trace, event), event, 0, head))


def of_output(trace: "Trace", found: Found) -> Value:
    """The value of an output of an event, checked against its hash."""
    reading, event, output = trace.reading, found.event, found.output
    source: Source = "recorded"
    array: Array | None = reading.recorded(event, output)
    if array is None:
        source = "recomputed"
        try:
            array = reading.recomputed(event, output)
        except (NotRecordedError, BadInputError) as error:
            raise ValueNotKeptError(_not_kept(trace, found, error)) from error
    whole = to_host(array)
    verdict = _verdict(event.outputs[output].hash, whole)
    if verdict == "differs":
        _say_so(trace, found.path, source)
    axes = event.outputs[output].axes
    if found.head is not None:
        if "H" not in axes or not 0 <= found.head < whole.shape[axes.index("H")]:
            raise BadInputError(
                f"{found.path} has no head {found.head!r:.40}; its axes are {axes}, {whole.shape}"
            )
        whole, axes = np.take(whole, found.head, axis=axes.index("H")), axes.replace("H", "")
    shown = whole.view()
    shown.flags.writeable = False
    return Value(found.path, shown, axes, source, verdict, event, output, found.head)


def _verdict(recorded: bytes | None, value: np.ndarray) -> HashVerdict:
    if recorded is None:
        return "not hashed"
    return "identical" if array_hash(value) == recorded else "differs"


def _say_so(trace: "Trace", path: str, source: Source) -> None:
    if source == "recorded":
        raise TraceDamagedError(
            f"the values of {path} in {trace.path.name} are not those that were hashed when it was made; the file "
            "was altered, so take it from another copy"
        )
    warnings.warn(
        f"{path} was computed again, and is not bit for bit what ran then (its hash differs): another processor, "
        "NumPy or BLAS gives other last bits",
        stacklevel=5,
    )


def _not_kept(trace: "Trace", found: Found, error: Exception) -> str:
    event, place = found.event, found.event.place
    level = trace.manifest["policy"].get("level", "?")
    if event.kind == "operation":
        rule = rule_that_would_keep(
            event.name, stage=place.stage, step=place.step, layer=place.layer, head=place.head
        )
        kept = f'keep="{rule}" would have kept it'
        if level == "events":
            kept += ', and keep="replayable" lets every value be computed again'
    else:
        kept = 'keep="replayable" would have kept it'
    return (
        f"{found.path} was not kept (this trace keeps {level}) and cannot be computed again: {error}; {kept}"
    )

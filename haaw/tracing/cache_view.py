"""`trace.cache`: keys and values of a layer as the last query of a step saw them, and the bytes they lie in."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from haaw.arrays import to_host
from haaw.errors import BadInputError
from haaw.tracing.attention_view import attention_pieces
from haaw.tracing.display import html_table, text_table
from haaw.tracing.estimate import in_words
from haaw.tracing.event import Event, Step, Window
from haaw.tracing.outputs import events_in
from haaw.tracing.row_positions import row_positions
from haaw.tracing.steps import StepLike, find_step, step_name
from haaw.tracing.text_view import tokens

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace


@dataclass(frozen=True, eq=False)
class CacheContents:
    """Keys and values (K, S, C) of one layer at the end of a step, the position and the token of each row.

    `useful_bytes` are those of these rows, `allocated_bytes` those of the buffers that they come from (a pool's
    buffers are shared by all its sequences).
    """

    path: str
    keys_KSC: np.ndarray = field(repr=False)
    values_KSC: np.ndarray = field(repr=False)
    positions: tuple[int, ...] = field(repr=False)
    labels: tuple[str, ...] = field(repr=False)
    useful_bytes: int
    allocated_bytes: int

    def _rows(self) -> list[list[object]]:
        keys, values = (abs(array).max(axis=(0, 2)) for array in (self.keys_KSC, self.values_KSC))
        rows: list[list[object]] = [
            [position, label, float(key), float(value)]
            for position, label, key, value in zip(self.positions, self.labels, keys, values, strict=True)
        ]
        return rows if len(rows) <= 40 else [*rows[:20], [None, "…", None, None], *rows[-19:]]

    def _caption(self) -> str:
        heads, rows, channels = self.keys_KSC.shape
        return (
            f"{self.path}: {heads} key/value heads, {rows} rows of {channels} channels; useful "
            f"{in_words(self.useful_bytes)}, allocated {in_words(self.allocated_bytes)}"
        )

    def __str__(self) -> str:
        return f"{self._caption()}\n{text_table(('position', 'token', 'largest key', 'largest value'), self._rows())}"

    def _repr_html_(self) -> str:
        return html_table(
            self._caption(), ("position", "token", "largest key", "largest value"), self._rows()
        )


def cache_contents(
    trace: "Trace", step: StepLike, layer: int, *, request: int | None = None, sequence: int | None = None
) -> CacheContents:
    """What the cache of a layer held at the end of a step, from its history or computed again."""
    found = find_step(trace, step, request=request)
    keys, values = _windows(trace, found, layer, sequence)
    keys_KSC, values_KSC = _joined(trace, keys), _joined(trace, values)
    positions = row_positions(trace, keys[0])
    labels = tokens(trace, request=found.request).labels(max(positions) + 1)
    return CacheContents(
        path=f"{step_name(trace, found)}/layer {layer}",
        keys_KSC=keys_KSC,
        values_KSC=values_KSC,
        positions=tuple(positions),
        labels=tuple(labels[position] for position in positions),
        useful_bytes=int(keys_KSC.nbytes + values_KSC.nbytes),
        allocated_bytes=_allocated_bytes(trace, (*keys, *values)),
    )


def cache_sizes(trace: "Trace", step: Step, layer: int, *, sequence: int | None = None) -> tuple[int, int]:
    """Useful and allocated bytes as in `cache_contents`, from the log alone: no value is read."""
    keys, values = _windows(trace, step, layer, sequence)
    useful = sum(
        int(np.prod(window.layout.shape, dtype=np.int64)) * np.dtype(window.layout.dtype).itemsize
        for window in (*keys, *values)
    )
    return useful, _allocated_bytes(trace, (*keys, *values))


def _windows(
    trace: "Trace", found: Step, layer: int, sequence: int | None
) -> tuple[list[Window], list[Window]]:
    """The keys and the values that the last queries of a step read."""
    pieces = attention_pieces(trace, found, layer, sequence)
    last = [piece for piece in pieces if piece.first == pieces[-1].first]
    keys = list(dict.fromkeys(piece.keys for piece in last))
    mixes = {}
    for event in events_in(trace, found, layer=layer, sequence=sequence):
        for link in event.inputs:
            if link.parameter == "values_KSC":
                mixes[event.inputs[0].window.buffer] = link.window
    weights = [piece.event.outputs[0].window.buffer for piece in last]
    if any(buffer not in mixes for buffer in weights):
        raise BadInputError(f"{found.name}, layer {layer} does not say which values its attention mixed")
    return keys, list(dict.fromkeys(mixes[buffer] for buffer in weights))


def _allocated_bytes(trace: "Trace", windows: Iterable[Window]) -> int:
    buffers = {buffer for window in windows for buffer in _allocated(trace, window)}
    return sum(_bytes(_maker(trace, buffer), buffer) for buffer in buffers)


def _joined(trace: "Trace", windows: list[Window]) -> np.ndarray:
    """All key/value heads; where heads were taken one by one, each of them had a window of its own."""
    parts = [to_host(trace.reading.window(window)) for window in windows]
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=0)
    shown = whole.view()
    shown.flags.writeable = False
    return shown


def _allocated(trace: "Trace", window: Window) -> set[int]:
    """The lasting buffers that a window is on, directly or through what gathered it."""
    if trace.reading.is_lasting(window):
        return {window.buffer}
    made = trace.reading.origins.maker(window.buffer)
    if made is None:
        return set()
    return {
        link.window.buffer
        for link in trace.event(made[0]).inputs
        if trace.reading.is_lasting(link.window) and _maker(trace, link.window.buffer).kind == "operation"
    }


def _maker(trace: "Trace", buffer: int) -> Event:
    number = trace.reading.rerun.history.maker(buffer)
    if number is None:
        raise BadInputError(f"the buffer {buffer} of the cache was made before this trace began")
    return trace.event(number)


def _bytes(event: Event, buffer: int) -> int:
    layout = next(output.window.layout for output in event.outputs if output.window.buffer == buffer)
    return int(np.prod(layout.shape, dtype=np.int64)) * np.dtype(layout.dtype).itemsize

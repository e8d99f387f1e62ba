"""`trace.attention`: who looked at whom in a step, with the tokens as labels; blocks and heads put together."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from haaw.arrays import to_host
from haaw.errors import BadInputError
from haaw.tracing.display import html_table, text_table
from haaw.tracing.event import Event, Step, Window
from haaw.tracing.outputs import events_in
from haaw.tracing.row_positions import row_positions
from haaw.tracing.steps import StepLike, find_step, step_name
from haaw.tracing.text_view import tokens

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace

MOST_SHOWN = 24


@dataclass(frozen=True, eq=False)
class AttentionPattern:
    """Attention weights of one layer in one step.

    `weights_HTS` are (heads, tokens of the step, keys); a key that a query could not see has 0. `queries` and
    `keys` name the tokens, `query_positions` and `key_positions` where they stand.
    """

    path: str
    weights_HTS: np.ndarray = field(repr=False)
    heads: tuple[int, ...]
    queries: tuple[str, ...] = field(repr=False)
    keys: tuple[str, ...] = field(repr=False)
    query_positions: tuple[int, ...] = field(repr=False)
    key_positions: tuple[int, ...] = field(repr=False)

    def head(self, number: int) -> np.ndarray:
        """The weights (T, S) of one head."""
        if number not in self.heads:
            raise BadInputError(f"{self.path} has no head {number}; it has {', '.join(map(str, self.heads))}")
        weights_TS: np.ndarray = self.weights_HTS[self.heads.index(number)]
        return weights_TS

    def strongest(self, count: int = 5, *, query: int = -1) -> list[tuple[str, int, float]]:
        """What one query looked at most, over the mean of the heads: token, position and weight."""
        mean_S = self.weights_HTS[:, query].mean(axis=0)
        return [
            (self.keys[at], self.key_positions[at], float(mean_S[at]))
            for at in np.argsort(-mean_S, kind="stable")[:count].tolist()
        ]

    def _rows(self) -> list[list[object]]:
        return [[label, position, round(weight, 4)] for label, position, weight in self.strongest(10)]

    def __str__(self) -> str:
        return f"{self._caption()}\n{text_table(('token', 'position', 'weight'), self._rows())}"

    def _caption(self) -> str:
        heads, count, keys = self.weights_HTS.shape
        return (
            f"{self.path}: {heads} heads, {count} queries, {keys} keys; "
            f"the mean of the heads for {self.queries[-1]} at {self.query_positions[-1]}"
        )

    def _repr_html_(self) -> str:
        mean_TS = self.weights_HTS.mean(axis=0)
        if len(mean_TS) == 1:
            return html_table(self._caption(), ("token", "position", "weight"), self._rows())
        columns = ["", *self.keys[:MOST_SHOWN]]
        rows = [
            [label, *(f"{weight:.2f}" if weight else "" for weight in row[:MOST_SHOWN])]
            for label, row in zip(self.queries[:MOST_SHOWN], mean_TS, strict=False)
        ]
        return html_table(f"{self.path}: the mean of {len(self.weights_HTS)} heads", columns, rows)


@dataclass(frozen=True)
class Piece:
    """One softmax: the event, the events that made its scores, the tokens from `first` on, its head or None for all."""

    event: Event
    scores: Event
    keys: Window
    first: int
    count: int
    head: int | None


def attention(
    trace: "Trace",
    step: StepLike,
    layer: int,
    head: int | None = None,
    *,
    request: int | None = None,
    sequence: int | None = None,
) -> AttentionPattern:
    """The attention weights of a layer in a step. Errors: `BadInputError` for a place that is not there."""
    found = find_step(trace, step, request=request)
    pieces = attention_pieces(trace, found, layer, sequence)
    heads = _heads(pieces, head)
    last = pieces[-1]
    count = last.first + last.count
    positions = [row_positions(trace, piece.keys) for piece in pieces]
    key_positions = sorted(set().union(*map(set, positions)))
    column = {position: number for number, position in enumerate(key_positions)}
    weights_HTS = np.zeros(
        (len(heads), count, len(key_positions)), dtype=last.event.outputs[0].window.layout.dtype
    )
    for piece, rows in zip(pieces, positions, strict=True):
        if piece.head is not None and piece.head not in heads:
            continue
        own_HTS = to_host(trace.reading.value(piece.event, 0))
        columns = [column[position] for position in rows]
        tokens_here = slice(piece.first, piece.first + piece.count)
        for place, number in enumerate(heads):
            if piece.head in (None, number):
                weights_HTS[place, tokens_here, columns] = own_HTS[number if piece.head is None else 0].T
    labels = tokens(trace, request=found.request).labels(max(key_positions) + 1)
    first = key_positions[-1] + 1 - count  # a step's own tokens are the last that its keys stand for
    weights_HTS.flags.writeable = False
    name = f"{step_name(trace, found)}/layer {layer}/{last.event.place.part}.{last.event.outputs[0].name}"
    return AttentionPattern(
        path=name if head is None else f"{name}, head {head}",
        weights_HTS=weights_HTS,
        heads=tuple(heads),
        queries=tuple(labels[first : first + count]),
        keys=tuple(labels[position] for position in key_positions),
        query_positions=tuple(range(first, first + count)),
        key_positions=tuple(key_positions),
    )


def attention_pieces(trace: "Trace", step: Step, layer: int, sequence: int | None = None) -> list[Piece]:
    """The softmaxes of a layer in order: one, or one a block of a prefill and one a head."""
    events = list(events_in(trace, step, layer=layer, sequence=sequence))
    found = [each for each in events if each.name == "softmax"]
    if not found:
        raise BadInputError(_nothing(trace, step, layer, sequence))
    if len({each.place.sequence for each in found}) > 1:
        raise BadInputError(f"{step.name} has several sequences; say which with sequence=")
    makers = {output.window.buffer: each for each in events for output in each.outputs}
    pieces: list[Piece] = []
    first = 0
    for event in found:
        scores = makers.get(event.inputs[0].window.buffer)
        keys = (
            next((link.window for link in scores.inputs if link.parameter == "keys_KSC"), None)
            if scores
            else None
        )
        if scores is None or keys is None:
            raise BadInputError(
                f"{step.name}, layer {layer}: the keys of {event.outputs[0].name} cannot be told"
            )
        count, head = event.outputs[0].window.layout.shape[1], event.place.head
        if pieces and (head is None or head == 0):
            first += pieces[-1].count
        pieces.append(Piece(event, scores, keys, first, count, head))
    return pieces


def _heads(pieces: Sequence[Piece], head: int | None) -> list[int]:
    own = sorted({piece.head for piece in pieces if piece.head is not None})
    there = own or list(range(pieces[0].event.outputs[0].window.layout.shape[0]))
    if head is None:
        return there
    if head not in there:
        raise BadInputError(f"there is no head {head!r:.40}; there are the heads 0 to {len(there) - 1}")
    return [head]


def _nothing(trace: "Trace", step: Step, layer: int, sequence: int | None) -> str:
    layers = sorted({each.place.layer for each in events_in(trace, step) if each.place.layer is not None})
    if not layers:
        return f"{step.name} has no attention; choose a prefill or decode step"
    if layer not in layers:
        return f"{step.name} has no layer {layer!r:.40}; it has the layers {layers[0]} to {layers[-1]}"
    where = "" if sequence is None else f" of sequence {sequence}"
    return f"{step.name}, layer {layer}{where} has no attention weights"

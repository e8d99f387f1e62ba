"""The logit lens: every layer's vector through the model's last norm and output table, as if it were the last one."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from haaw.arrays import to_host
from haaw.errors import BadInputError
from haaw.tracing.event import Event, Step
from haaw.tracing.outputs import events_in
from haaw.tracing.running import operation
from haaw.view.plots.residual import residual

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace

BEST = 8


@dataclass(frozen=True, eq=False)
class LogitLens:
    """What each layer would say next at one position: its most likely tokens, by falling probability.

    `parts` name where the vector comes from; `ids_LN` and `probabilities_LN` are (parts, tokens). `why` says what is
    missing where only the model's own logits are there.
    """

    step: Step
    position: int
    parts: tuple[str, ...]
    ids_LN: np.ndarray = field(repr=False)
    probabilities_LN: np.ndarray = field(repr=False)
    why: str | None = None


def logit_lens(
    trace: "Trace", step: Step, *, position: int | None = None, last: int = 1, best: int = BEST
) -> list[LogitLens]:
    """The lens at one position of a step, or at its last ones.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens". The norm and the product are the operations that
    the step itself ended with, and their weights. Errors: `BadInputError` for a position that is not there, or where
    neither the vectors nor the logits can be had.
    """
    stream = residual(trace, step)
    if position is not None and position not in stream.positions:
        raise BadInputError(
            f"{step.name} has no token at position {position!r:.40}; it has {stream.positions[0]} to "
            f"{stream.positions[-1]}"
        )
    places = (
        [stream.positions.index(position)] if position is not None else range(len(stream.positions))[-last:]
    )
    try:
        norm, product = _ending(trace, step)
        weights = [_arguments(trace, event) for event in (norm, product)]
        x_LTD = np.stack([x_TD[places] for x_TD in stream.vectors(trace)])
    except BadInputError as error:
        return [_own_logits_only(trace, step, stream.positions[-1], best, error)]
    found = []
    for number, place in enumerate(places):
        normed_LD = _again(norm, x_LTD[:, number], weights[0])
        ids_LN, probabilities_LN = _most_likely(_again(product, normed_LD, weights[1]), best)
        found.append(LogitLens(step, stream.positions[place], stream.parts, ids_LN, probabilities_LN))
    return found


def _ending(trace: "Trace", step: Step) -> tuple[Event, Event]:
    """The norm and the product that a step ended with."""
    ending = [each for each in events_in(trace, step, part="output") if each.kind == "operation"]
    product = next((each for each in reversed(ending) if each.outputs[0].name == "logits"), None)
    made = {output.window.buffer: each for each in ending for output in each.outputs}
    norm = None if product is None else made.get(product.inputs[0].window.buffer)
    if product is None or norm is None or norm.outputs[0].axes != "TD":
        raise BadInputError(
            f"{step.name} does not end with a norm and an output table, so it has no logit lens"
        )
    return norm, product


def _arguments(trace: "Trace", event: Event) -> dict[str, Any]:
    """What an operation was given besides the vectors."""
    weights = {link.parameter: to_host(trace.reading.window(link.window)) for link in event.inputs[1:]}
    return {**event.args, **weights}


def _again(event: Event, x_TD: np.ndarray, arguments: dict[str, Any]) -> np.ndarray:
    """The operation of an event on other vectors."""
    made: np.ndarray = operation(event.name).plain(**{event.inputs[0].parameter: x_TD}, **arguments)
    return made


def _own_logits_only(trace: "Trace", step: Step, position: int, best: int, error: BadInputError) -> LogitLens:
    """Without the vectors or the weights: the model's own last word, where its logits were kept."""
    try:
        logits_TV = trace.logits(step).array
    except BadInputError:
        raise error from None
    ids_LN, probabilities_LN = _most_likely(logits_TV[-1:], best)
    return LogitLens(step, position, ("logits",), ids_LN, probabilities_LN, str(error))


def _most_likely(logits_TV: np.ndarray, best: int) -> tuple[np.ndarray, np.ndarray]:
    wide_TV = logits_TV.astype(np.float64)
    wide_TV = np.exp(wide_TV - wide_TV.max(axis=1, keepdims=True))
    wide_TV /= wide_TV.sum(axis=1, keepdims=True)
    ids_TN = np.argsort(-wide_TV, axis=1, kind="stable")[:, :best]
    return ids_TN, np.take_along_axis(wide_TV, ids_TN, axis=1)

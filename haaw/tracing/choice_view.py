"""`trace.candidates`: how a step chose its token: scores, each filter with the survivors, the draw."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from haaw.arrays import to_host
from haaw.errors import BadInputError
from haaw.tracing.display import html_table, text_table, token_text
from haaw.tracing.event import Event
from haaw.tracing.outputs import events_in
from haaw.tracing.steps import StepLike, find_step, step_name

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace

RUNNERS_UP = 10
CHOOSERS = ("greedy", "draw")


@dataclass(frozen=True, eq=False)
class Stage:
    """What a stage of the plan leaves over: ids, their scores, and their probabilities among each other."""

    name: str
    ids_N: np.ndarray = field(repr=False)
    scores_N: np.ndarray = field(repr=False)

    @property
    def left(self) -> int:
        """How many candidates there are."""
        return len(self.ids_N)

    @property
    def probabilities_N(self) -> np.ndarray:
        """In float64; they add up to one."""
        wide_N = self.scores_N.astype(np.float64)
        masses_N = np.exp(wide_N - wide_N.max())
        probabilities_N: np.ndarray = masses_N / masses_N.sum()
        return probabilities_N


class Candidate(NamedTuple):
    """One token that could have been chosen. `dropped_by` names the filter that it did not pass."""

    id: int
    bytes: bytes | None
    score: float
    probability: float
    dropped_by: str | None


@dataclass(frozen=True, eq=False)
class Choice:
    """The choice of one step. `stages` begin with the scores of the model; `how` is "greedy" or "draw".

    `candidates` are the chosen token and the most likely others, by falling probability before the filters.
    """

    step: str
    how: str
    chosen: Candidate
    candidates: tuple[Candidate, ...] = field(repr=False)
    stages: tuple[Stage, ...] = field(repr=False)
    uniform: float | None = None

    def _rows(self) -> list[list[object]]:
        return [
            [
                "→" if each.id == self.chosen.id else "",
                str(each.id),
                token_text(each.bytes),
                each.score,
                each.probability,
                each.dropped_by or "",
            ]
            for each in self.candidates
        ]

    def _caption(self) -> str:
        left = " → ".join(f"{stage.name} {stage.left:,}" for stage in self.stages)
        drawn = "" if self.uniform is None else f", with u = {self.uniform:.6f}"
        return f"{self.step}: {left} → {self.how}{drawn} → {token_text(self.chosen.bytes)} ({self.chosen.id})"

    def __str__(self) -> str:
        return f"{self._caption()}\n{text_table(_COLUMNS, self._rows())}"

    def _repr_html_(self) -> str:
        return html_table(self._caption(), _COLUMNS, self._rows())


_COLUMNS = ("", "id", "token", "score", "probability", "dropped by")


def choice(trace: "Trace", step: StepLike, *, request: int | None = None) -> Choice:
    """How a step chose. Errors: `BadInputError` where it chose nothing."""
    found = find_step(trace, step, request=request)
    events = list(events_in(trace, found))
    choosing = [each for each in events if each.place.part == "choose"]
    last = next((each for each in reversed(choosing) if each.name in CHOOSERS), None)
    logits = [each for each in events if each.outputs[0].name == "logits"]
    if last is None or not logits:
        raise BadInputError(f"{found.name} chose no token; choose the last prefill step or a decode step")
    stages = _stages(trace, logits[-1], choosing)
    chosen_id = int(to_host(trace.reading.value(last, 0)).reshape(-1)[0])
    uniform = next((each for each in choosing if each.kind == "input" and each.name == "uniform"), None)
    listed = _candidates(trace, stages, chosen_id)
    return Choice(
        step=step_name(trace, found),
        how=last.name,
        chosen=next(each for each in listed if each.id == chosen_id),
        candidates=tuple(listed),
        stages=tuple(stages),
        uniform=None if uniform is None else float(to_host(trace.reading.value(uniform, 0)).reshape(-1)[0]),
    )


def _stages(trace: "Trace", logits: Event, choosing: list[Event]) -> list[Stage]:
    scores_V = to_host(trace.reading.value(logits, 0))[-1]
    stages = [Stage("scores", np.arange(len(scores_V)), scores_V)]
    for event in choosing:
        if event.kind != "operation":
            continue
        axes = [output.axes for output in event.outputs]
        if axes == ["V"] and event.name != "log_softmax":
            adjusted_V = to_host(trace.reading.value(event, 0))
            stages.append(Stage(event.name, np.arange(len(adjusted_V)), adjusted_V))
        elif axes == ["N", "N"] and event.name != "top_candidates":
            ids_N, scores_N = (to_host(trace.reading.value(event, output)) for output in range(2))
            stages.append(Stage(event.name, ids_N, scores_N))
    return stages


def _candidates(trace: "Trace", stages: list[Stage], chosen_id: int) -> list[Candidate]:
    """By probability before anything is dropped: of the last stage that still has the whole vocabulary."""
    whole = [stage for stage in stages if stage.left == stages[0].left and stage.name != "candidates"][-1]
    probabilities_V = whole.probabilities_N
    order = np.argsort(-probabilities_V, kind="stable")[: RUNNERS_UP + 1].tolist()
    order = order if chosen_id in order else [*order[:-1], chosen_id]
    bytes_of = _bytes_of(trace)
    return [
        Candidate(
            token_id,
            bytes_of(token_id),
            float(stages[0].scores_N[token_id]),
            float(probabilities_V[token_id]),
            _dropped_by(stages, token_id),
        )
        for token_id in order
    ]


def _dropped_by(stages: list[Stage], token_id: int) -> str | None:
    for stage in stages:
        if stage.left < len(stages[0].ids_N) and token_id not in stage.ids_N:
            return stage.name
    return None


def _bytes_of(trace: "Trace") -> Any:
    known: dict[int, bytes | None] = {**trace.reading.texts.token_bytes}

    def look_up(token_id: int) -> bytes | None:
        if token_id not in known and trace.token_bytes is not None:
            known[token_id] = trace.token_bytes(token_id)
        return known.get(token_id)

    return look_up

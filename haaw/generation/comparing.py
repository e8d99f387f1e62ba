"""The same prompt through several kinds of cache, side by side: ids, scores, bytes, times, and where they part."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from haaw.arrays import Array, to_host
from haaw.caches.kinds import KINDS, NO_CACHE
from haaw.errors import BadInputError
from haaw.generation.answer import Answer
from haaw.generation.language_model import LanguageModel, PromptLike
from haaw.ops.op import Op
from haaw.ops.recorder import Recorder, Scope, choosing_recorder


@dataclass(frozen=True)
class Parting:
    """The first token that is not the reference's. `margin` is the reference's best score less the second best."""

    step: int
    token_id: int
    reference_id: int
    text: str
    reference_text: str
    margin: float


@dataclass(frozen=True)
class Row:
    """What one kind of cache did. Bytes are those at the end.

    `largest_difference` is that of any score from the reference's, over the steps up to the first token that differs.
    """

    cache: str
    answer: Answer
    same_ids: bool
    largest_difference: float
    parting: Parting | None
    useful_bytes: int
    allocated_bytes: int
    metadata_bytes: int
    notes: tuple[str, ...]

    @property
    def waste(self) -> float:
        """The share of the allocated bytes that holds nothing, 0 to 1."""
        return 1 - self.useful_bytes / self.allocated_bytes if self.allocated_bytes else 0.0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "cache": self.cache,
            "same_ids": self.same_ids,
            "largest_difference": self.largest_difference,
            "parting": None if self.parting is None else vars(self.parting),
            "useful_bytes": self.useful_bytes,
            "allocated_bytes": self.allocated_bytes,
            "metadata_bytes": self.metadata_bytes,
            "peak_bytes": self.answer.cache_peak_bytes,
            "waste": self.waste,
            "timing_s": dict(self.answer.timing_s),
            "token_ids": list(self.answer.token_ids),
            "text": self.answer.text,
            "notes": list(self.notes),
        }


HEADINGS = (
    "cache", "ids", "scores", "useful, B", "allocated, B", "metadata, B", "peak, B", "waste",
    "prefill, s", "decode, s", "ms a token",
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Rows in the order that was asked for; the first one is the reference."""

    rows: tuple[Row, ...]

    def table(self) -> list[tuple[str, ...]]:
        """The rows in words."""
        reference = self.rows[0].cache
        return [
            (
                row.cache,
                "reference" if row.cache == reference else "same" if row.same_ids else "differ",
                "" if row.cache == reference else f"{row.largest_difference:.1e}",
                f"{row.useful_bytes:,}",
                f"{row.allocated_bytes:,}",
                f"{row.metadata_bytes:,}",
                f"{row.answer.cache_peak_bytes:,}",
                f"{100 * row.waste:.0f} %",
                f"{row.answer.timing_s['prefill']:.3f}",
                f"{row.answer.timing_s['decode']:.3f}",
                f"{1e3 * row.answer.timing_s['decode'] / max(len(row.answer.token_ids) - 1, 1):.2f}",
            )
            for row in self.rows
        ]

    def remarks(self) -> list[str]:
        """Where kinds part from the reference, and what they say of themselves."""
        said = []
        for row in self.rows:
            if row.parting is not None:
                part = row.parting
                said.append(
                    f"{row.cache}: token {part.step + 1} is {part.text!r} ({part.token_id}) instead of "
                    f"{part.reference_text!r} ({part.reference_id}), which led by {part.margin:.3g}"
                )
            said += [f"{row.cache}: {note}" for note in row.notes]
        return said

    def __str__(self) -> str:
        lines = [HEADINGS, *self.table()]
        widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
        text = [
            "  ".join(
                cell.ljust(width) if column < 2 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([*text, *self.remarks()])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in HEADINGS)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.table()
        )
        remarks = "".join(f"<li>{escape(remark)}</li>" for remark in self.remarks())
        return f"<table><tr>{head}</tr>{body}</table>{'<ul>' + remarks + '</ul>' if remarks else ''}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"reference": self.rows[0].cache, "rows": [row.to_dict() for row in self.rows]}


class _Scores(Recorder):
    """Keeps the scores that each token was chosen from, and what the cache held when it was released."""

    def __init__(self) -> None:
        self.scores: list[np.ndarray] = []
        self.released: dict[str, Any] = {}

    def run(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], scope: Scope) -> Any:
        if op.name == "greedy":
            self.scores.append(np.array(to_host(args[0])))
        return op.plain(*args, **kwargs)

    def declare(self, name: str, array: Array, scope: Scope) -> None: ...

    def know_weights(self, weights: Mapping[str, Array]) -> None: ...

    def emit(self, kind: str, facts: Mapping[str, Any], scope: Scope) -> None:
        if kind == "released":
            self.released = dict(facts)


def compare_caches(
    model: LanguageModel,
    prompt: PromptLike,
    caches: Sequence[str],
    *,
    cache_options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> Comparison:
    """Answers a prompt greedily once with each kind of cache. `cache_options` are by kind; `settings` as for a request.

    Errors: `BadInputError` for fewer than two kinds, one named twice or unknown, or a setting that is not greedy.
    """
    _check(caches, settings)
    rows: list[Row] = []
    reference: tuple[Answer, list[np.ndarray]] | None = None
    for number, kind in enumerate(caches):
        kept = _Scores()
        with choosing_recorder(kept):
            options = dict((cache_options or {}).get(kind, {}))
            request = model.request(prompt, cache=kind, cache_options=options, **settings)
            answer = request.run()
        if reference is None:
            reference = answer, kept.scores
        rows.append(_row(model, kind, answer, kept, reference, request.notes))
        if progress is not None:
            progress(number + 1, len(caches))
    return Comparison(tuple(rows))


def _check(caches: Sequence[str], settings: Mapping[str, Any]) -> None:
    known = [NO_CACHE, *KINDS]
    for kind in caches:
        if kind not in known:
            raise BadInputError(f'there is no cache "{kind}"; there are: {", ".join(known)}')
    if len(caches) < 2 or len(set(caches)) < len(caches):
        raise BadInputError(
            "a comparison needs two or more different kinds of cache; the first is the reference"
        )
    if settings.get("temperature", 0) != 0:
        raise BadInputError(
            "a comparison chooses the most likely token each time; leave the temperature at 0"
        )


def _row(
    model: LanguageModel,
    kind: str,
    answer: Answer,
    kept: _Scores,
    reference: tuple[Answer, list[np.ndarray]],
    notes: tuple[str, ...],
) -> Row:
    first, scores = reference
    pairs = list(zip(first.token_ids, answer.token_ids, strict=False))
    parted = next((step for step, (one, other) in enumerate(pairs) if one != other), None)
    compared = len(pairs) if parted is None else parted + 1
    differences = [
        float(np.max(np.abs(one - other)))
        for one, other in zip(scores[:compared], kept.scores[:compared], strict=True)
    ]
    parting = None
    if parted is not None:
        best = np.partition(scores[parted], -2)[-2:]
        one, other = pairs[parted]
        parting = Parting(
            parted, other, one, _text(model, other), _text(model, one), float(best[1] - best[0])
        )
    facts = kept.released
    return Row(
        cache=kind,
        answer=answer,
        same_ids=first.token_ids == answer.token_ids,
        largest_difference=max(differences, default=0.0),
        parting=parting,
        useful_bytes=int(facts.get("useful_bytes", 0)),
        allocated_bytes=int(facts.get("bytes", 0)),
        metadata_bytes=int(facts.get("metadata_bytes", 0)),
        notes=tuple(notes),
    )


def _text(model: LanguageModel, token_id: int) -> str:
    return model.tokenizer.token_bytes(token_id).decode("utf-8", "replace")

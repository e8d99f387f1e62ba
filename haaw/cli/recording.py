"""`haaw run --trace FILE`: the size of the trace before the run, by counting a throw-away step; the real one after."""

import json
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from haaw.cli.output import remark
from haaw.errors import BadInputError
from haaw.generation.language_model import LanguageModel
from haaw.generation.request import Request
from haaw.ops.recorder import Recorder, recording

TraceFile = Annotated[Path | None, typer.Option("--trace", help="Record the run into this file (.haaw).")]
KeepPolicy = Annotated[
    str | None,
    typer.Option(
        "--keep",
        help='What the trace keeps: events, replayable (default) or full, with rules and a budget: "replayable; '
        'full: op=softmax layer=3; budget=50MB".',
    ),
]


@contextmanager
def recorded(
    path: Path | None, keep: str | None, language_model: LanguageModel
) -> Iterator[Callable[[Request], None]]:
    """Records what is requested in the block, if there is a path; yields what announces the size of a request's trace.

    Errors: `BadInputError` for an impossible policy or path, before anything runs.
    """
    if path is None:
        if keep is not None:
            raise BadInputError("--keep says what a trace keeps; name its file with --trace FILE")
        yield lambda request: None
        return
    import haaw
    from haaw.tracing.estimate import estimate, in_words
    from haaw.tracing.manifest import sources
    from haaw.tracing.policy import Keep

    policy = Keep.parse(keep)
    if policy.has_rules:
        policy.check_model(
            layers=language_model.transformer.cache_layout.layers, heads=_heads(language_model)
        )

    def announce(request: Request) -> None:
        expected = estimate(counts_of(language_model, request), policy)
        text_bytes = len(json.dumps(sources()))  # which the manifest holds
        remark(f"trace: {replace(expected, fact_bytes=expected.fact_bytes + text_bytes)}")

    recording = haaw.record(path, policy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a trace that ends early is told below
        with recording:
            yield announce
    if recording.ended_early is not None:
        remark(f"trace: {recording.ended_early}")
    size = path.stat().st_size if path.is_file() else 0
    remark(
        f"trace: {path} has {in_words(size)}, {recording.recorder.events:,} events; "
        f"look at it with: haaw trace info {shlex.quote(str(path))}"
    )


def _heads(language_model: LanguageModel) -> int:
    config: Any = getattr(language_model.transformer, "config", None)
    found = getattr(config, "query_heads", None) or getattr(config, "heads", None)
    return int(found or language_model.transformer.cache_layout.kv_heads)


def counts_of(language_model: LanguageModel, request: Request) -> Any:
    """What `haaw.tracing.estimate` needs: a prefill of two tokens and a decode step are run, and counted."""
    from haaw.caches.kinds import NO_CACHE, make_cache
    from haaw.generation.engine import advance
    from haaw.generation.sampling import NumericalError, Sampler
    from haaw.models.attention import BLOCK_TOKENS
    from haaw.tracing.estimate import RunCounts

    transformer, settings = language_model.transformer, request.settings
    layout = transformer.cache_layout
    options = {name: value for name, value in settings.cache_options.items() if name != "pool"}
    cache = make_cache(
        settings.cache, layout, transformer.prototype_Z,
        context_length_tokens=transformer.context_length_tokens, **({} if settings.cache == NO_CACHE else options),
    )  # fmt: skip
    first = request.prompt_ids[0]
    prefill, decode = Counter(), Counter()
    try:
        for counter, stage, ids in ((prefill, "prefill", [first, first]), (decode, "decode", [first])):
            if cache.length + len(ids) > transformer.context_length_tokens:
                continue
            with recording(counter, stage=stage, step=1):
                logits_BV = advance(transformer, cache, ids, heads=settings.heads)
                try:
                    Sampler(settings.sampling, [first], log_probabilities=settings.logprobs).choose(
                        logits_BV[-1]
                    )
                except NumericalError:  # the real run will say so
                    continue
    finally:
        cache.release()
    chunk = min(settings.prefill_chunk_tokens, len(request.prompt_ids))
    blocks = -(-chunk // BLOCK_TOKENS)
    prompt = len(request.prompt_ids)
    return RunCounts(
        prompt_tokens=prompt,
        chunk_tokens=chunk,
        max_tokens=max(1, min(settings.max_tokens, transformer.context_length_tokens - prompt + 1)),
        events_per_prefill_step=prefill.events + (blocks - 1) * prefill.in_blocks,
        events_per_decode_step=decode.events or prefill.events,
        kv_bytes_per_position=layout.bytes_per_position,
        outputs=(decode if decode.events else prefill).outputs,
    )


class Counter(Recorder):
    """A recorder that counts events and the bytes of their results, and keeps nothing."""

    def __init__(self) -> None:
        self.events = 0
        self.in_blocks = 0
        self.outputs: list[Any] = []

    def run(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], scope: Any) -> Any:
        """Runs an operation and counts it."""
        result = op.plain(*args, **kwargs)
        self.events += 1
        self.in_blocks += op.name in ("attention_scores", "softmax", "attention_mix", "merge_heads")
        if op.writes is None and not op.name.startswith("kv_allocate"):
            results = result if len(op.out) > 1 else (result,)
            for name, value in zip(op.out, results, strict=True):
                self.outputs.append(_output_bytes(op.name, name, value, scope))
        return result

    def declare(self, name: str, array: Any, scope: Any) -> None:
        """Counts an input."""
        self.events += 1

    def know_weights(self, weights: Mapping[str, Any]) -> None:
        """Weights are not kept."""

    def emit(self, kind: str, facts: Mapping[str, Any], scope: Any) -> None:
        """Counts a fact."""
        self.events += 1


def _output_bytes(op: str, name: str, value: Any, scope: Any) -> Any:
    """How a result grows: with tokens, with tokens and positions, or (scores of the last token, choices) not at all."""
    from haaw.ops.shapes import suffix
    from haaw.tracing.estimate import OutputBytes

    lengths = dict(zip(suffix(name) or "", value.shape, strict=False))
    place = {"layer": scope.layer, "head": scope.head, "part": scope.part}
    nbytes = float(value.nbytes)
    if scope.part in ("output", "choose") or not lengths.keys() & {"T", "S"}:
        return OutputBytes(op, once=nbytes, **place)
    if "S" in lengths:
        return OutputBytes(op, per_token_and_position=nbytes / (lengths.get("T", 1) * lengths["S"]), **place)
    return OutputBytes(op, per_token=nbytes / lengths["T"], **place)

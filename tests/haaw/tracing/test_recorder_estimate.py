"""The size that is announced before a run, against the file behind it (without its manifest, which is known)."""

import pytest
from support.traced import CACHES, SAMPLING, model_of

import haaw
from haaw.cli.recording import counts_of
from haaw.tracing.estimate import estimate
from haaw.tracing.policy import Keep
from haaw.tracing.trace import Trace

TEXT = "Once upon a time there was a little girl who liked to read."


def announced_and_real(model, path, keep, **settings):
    """Bytes without the manifest, expected and real; a run that ends early is no fault of the estimate."""
    policy = Keep.parse(keep)
    with haaw.record(path, policy):
        answer = model.request(TEXT, **settings).run()
    request = model.request(TEXT, **{**settings, "max_tokens": len(answer.token_ids)})
    expected = estimate(counts_of(model, request), policy).total_bytes
    with Trace(path) as trace:
        return expected, path.stat().st_size - trace.container.members["manifest.json"].size


FORMS = {
    "short": {"max_tokens": 4},
    "long": {"max_tokens": 60, "prefill_chunk_tokens": 4},
    "drawn, heads apart": {"max_tokens": 12, "heads": "separate", **SAMPLING},
    "paged": {"max_tokens": 12, **CACHES["paged"]},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("keep", ["events", "replayable", "full", "replayable; full: op=softmax layer=1"])
def test_the_estimate_is_within_a_factor_of_one_and_a_half_on_tiny(tmp_path, keep, form):
    expected, real = announced_and_real(model_of("tiny"), tmp_path / "run.haaw", keep, **FORMS[form])
    assert real / 1.5 < expected < real * 1.5, (expected, real)


@pytest.mark.weights
@pytest.mark.parametrize("keep", ["events", "replayable", "full"])
def test_the_estimate_is_within_a_factor_of_one_and_a_half_on_smollm2(tmp_path, smollm2, keep):
    expected, real = announced_and_real(smollm2, tmp_path / "run.haaw", keep, max_tokens=5)
    assert real / 1.5 < expected < real * 1.5, (expected, real)

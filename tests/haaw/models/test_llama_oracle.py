"""Random tiny Llamas give the logits of `transformers` in float32, at every position, however they come over.

FAULTS: S42 (layouts), S47 (scaling under either spelling), S48 (order of shared heads), S49 (head_dim), S60 and S61
(tied or not).
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.steps import all_logits

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from support import hugging_face  # noqa: E402

from haaw.models.llama import config_from_hugging_face  # noqa: E402
from haaw.models.protocol import Heads  # noqa: E402

pytestmark = pytest.mark.oracle

TOLERANCE = 1e-4
LLAMA_3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "8 query heads share 2": {"hidden_size": 64, "num_attention_heads": 8},
    "all query heads share 1": {"num_key_value_heads": 1},
    "every head on its own": {"num_key_value_heads": 4},
    "heads of 10 channels": {"head_dim": 10},
    "heads of 6 channels, tied": {"head_dim": 6, "tie_word_embeddings": True},
    "heads wider than the model's share": {"head_dim": 24, "num_attention_heads": 2},
    "RoPE base 500,000": {"head_dim": 16, "rope_theta": 500_000.0},
    "Llama-3 scaling": {"head_dim": 16, "rope_theta": 500_000.0, "rope_scaling": LLAMA_3},
}


@pytest.fixture(autouse=True)
def one_torch_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ids_for(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, hugging_face.SHAPE["vocab_size"], count).tolist()


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS.keys())
def test_every_position_has_the_logits_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    model = hugging_face.random_model(1, **changes)
    ids = ids_for(2, 200)
    expected = hugging_face.reference_logits(model, ids)
    assert hugging_face.highest_attention_weight(model, ids, first_row=32) > 0.5
    assert 1 < expected.std() < 10
    for ours in (hugging_face.from_memory(model), hugging_face.through_gguf(model, tmp_path / "tiny.gguf")):
        np.testing.assert_allclose(all_logits(ours, ids), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("heads", ["together", "separate"])
@pytest.mark.parametrize("chunk", [None, 1, 7])
def test_neither_the_form_of_attention_nor_the_chunks_matter(heads: Heads, chunk: int | None) -> None:
    model = hugging_face.random_model(3, hidden_size=64, num_attention_heads=8)
    ids = ids_for(4, 100)
    ours = all_logits(hugging_face.from_memory(model), ids, chunk=chunk, heads=heads)
    np.testing.assert_allclose(ours, hugging_face.reference_logits(model, ids), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["every head on its own", "RoPE base 500,000", "Llama-3 scaling"])
def test_logits_agree_beyond_position_4000(name: str) -> None:
    """Errors of an angle grow with the position: those of RoPE show only far out."""
    model = hugging_face.random_model(5, num_hidden_layers=2, **CONFIGS[name])
    ids = ids_for(6, 4_200)
    ours = all_logits(hugging_face.from_memory(model), ids, chunk=512)
    expected = hugging_face.reference_logits(model, ids)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("head_dim", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("context", [512, 4096])
@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_llama_3_scaling_rounds_as_the_reference_does(head_dim: int, context: int, base: float) -> None:
    """One unit in the last place of a frequency is 3e-4 in the logits at position 4,000.

    Where the unscaled frequencies agree to the bit (the library's float32 power may be off by one unit), the
    scaled ones do too. Widths are powers of two, so that the exponents are exact: for others that unit comes
    and goes from call to call.
    """
    scaling = LLAMA_3 | {"original_max_position_embeddings": context}
    plain, scaled = (
        hugging_face.rope_frequencies(head_dim, base, scaling=scaling_or_none)
        for scaling_or_none in (None, scaling)
    )
    exact = plain.ours == plain.theirs
    assert exact.mean() > 0.9
    np.testing.assert_array_equal(scaled.ours[exact], scaled.theirs[exact])


def test_both_spellings_of_the_scaling_are_one_config() -> None:
    """S47: the old keys `rope_theta` and `rope_scaling` (`type` or `rope_type`), and the new `rope_parameters`."""
    model = hugging_face.random_model(7, **CONFIGS["Llama-3 scaling"])
    new = model.config.to_dict()
    together = new.pop("rope_parameters")
    base = together.pop("rope_theta")
    kind = together.pop("rope_type")
    expected = config_from_hugging_face(model.config.to_dict())
    assert expected.rope_scaling is not None
    for spelling in ("type", "rope_type"):
        old = new | {"rope_theta": base, "rope_scaling": together | {spelling: kind}}
        assert config_from_hugging_face(old) == expected
    inside = new | {"rope_scaling": together | {"rope_type": kind, "rope_theta": base}}
    assert config_from_hugging_face(inside) == expected


def test_a_tied_model_runs_without_an_output_table_and_shares_the_memory() -> None:
    """S60: a checkpoint without an output head must not run on random numbers."""
    ours = hugging_face.from_memory(hugging_face.random_model(8, tie_word_embeddings=True))
    assert ours.weights.output_VD is ours.weights.embedding_VD

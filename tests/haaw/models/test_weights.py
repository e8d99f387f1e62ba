"""Weights from strangers: each tensor is read once, in its shape, with finite values, and none is left over.

FAULTS: S60 to S63 (missing, thrown away or misread tensors), S66 (sizes chosen by an attacker).
"""

import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest
from support.tiny_models import MemorySource, tiny_config, tiny_tensors

from haaw.errors import BadInputError
from haaw.models import llama
from haaw.models.weights import BLOCK_BYTES, WeightLoader, unpermute_rope_rows

EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


def build(tensors: dict[str, np.ndarray], **changes: Any) -> llama.Llama:
    loader = WeightLoader(MemorySource(tensors))
    return llama.build(tiny_config(**changes), loader, llama.HUGGING_FACE_NAMES, layout="half-split")


def tensors(*, tied: bool = True) -> dict[str, np.ndarray]:
    return tiny_tensors(1, tiny_config(tied=tied))


def refused(spoilt: dict[str, np.ndarray], *, tied: bool = True, **changes: Any) -> str:
    with pytest.raises(BadInputError) as caught:
        build(spoilt, tied=tied, **changes)
    return str(caught.value)


@pytest.mark.parametrize("name", tensors(tied=False))
def test_a_missing_tensor_is_named(name: str) -> None:
    """S62: no parameter may stay unassigned."""
    spoilt = tensors(tied=False)
    del spoilt[name]
    assert f'"{name}" is missing' in refused(spoilt, tied=False)


@pytest.mark.parametrize("name", tensors(tied=False))
def test_a_tensor_of_another_shape_is_named(name: str) -> None:
    for change in (lambda array: array[1:], lambda array: array[..., :-1], lambda array: array[None]):
        spoilt = tensors(tied=False)
        spoilt[name] = change(spoilt[name])
        assert f'"{name}" has the shape' in refused(spoilt, tied=False)


def test_a_tensor_that_has_no_place_is_named() -> None:
    for name in ("model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"):
        assert name in refused(tensors() | {name: np.zeros(3, np.float32)})


def test_the_frequencies_that_old_checkpoints_store_are_passed_over() -> None:
    build(tensors() | {"model.layers.1.self_attn.rotary_emb.inv_freq": np.ones(3, np.float32)}, tied=True)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", tensors())
def test_a_value_that_is_not_finite_is_refused(name: str, value: float) -> None:
    spoilt = tensors()
    spoilt[name].flat[-1] = value
    assert f'"{name}" holds NaN or infinite values' in refused(spoilt)


def test_infinities_that_cancel_are_refused_and_huge_values_accepted_without_a_warning() -> None:
    spoilt = tensors()
    spoilt["model.norm.weight"][:2] = np.inf, -np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert '"model.norm.weight" holds NaN or infinite values' in refused(spoilt)
        huge = tensors()
        huge["model.layers.0.mlp.up_proj.weight"][:] = 3e38
        build(huge, tied=True)


@pytest.mark.parametrize("changes", [{"vocabulary_size": 10**9}, {"width": 2**31 - 1}, {"mlp_width": 10**9}])
def test_sizes_that_the_tensors_do_not_have_cost_no_memory(changes: dict[str, int]) -> None:
    """S66: shapes are compared before memory is asked for; one block of small tensors may stand by then."""
    small = tensors()
    tracemalloc.start()
    try:
        assert "has the shape" in refused(small, **changes)
        assert tracemalloc.get_traced_memory()[1] < BLOCK_BYTES + 1e6
    finally:
        tracemalloc.stop()


def test_two_thousand_million_layers_end_at_the_first_that_is_missing() -> None:
    assert '"model.layers.2.input_layernorm.weight" is missing' in refused(tensors(), layers=2**31 - 1)


def test_a_model_that_is_not_tied_needs_its_output_table() -> None:
    """S60: an output head must not stay random because a file lacks it."""
    assert f'"{OUTPUT}" is missing' in refused(tensors(tied=True), tied=False)


def test_a_tied_model_with_an_output_table_of_its_own_keeps_what_the_file_has() -> None:
    """S61: metadata was trusted over data, and a head that differed thrown away."""
    same, other = tensors(), tensors()
    same[OUTPUT] = same[EMBEDDING].copy()
    other[OUTPUT] = other[EMBEDDING] * 2
    shared = build(same, tied=True)
    assert shared.weights.output_VD is shared.weights.embedding_VD
    kept = build(other, tied=True)
    np.testing.assert_array_equal(kept.weights.output_VD, other[OUTPUT])
    assert (shared.config.tied, kept.config.tied) == (True, False)


def test_interleaved_rows_become_half_split() -> None:
    """S42, by hand: two heads of 6 channels; row 2·i + j of a head holds channel i + 3·j."""
    part = np.arange(12.0, dtype=np.float32)[:, None].copy()
    unpermute_rope_rows(part, 2)
    assert part[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]

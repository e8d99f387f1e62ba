"""A test that cannot fail is a defect: typical faults, planted one at a time, are far beyond the tolerance.

The reference is `transformers`; the set-up is the one in which the unspoilt model agrees with it.
FAULTS: S42 (layout), S47 (dropped scaling), S48 (tiled heads), S58 (another eps).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.steps import all_logits

import haaw.models.attention
import haaw.models.llama
from haaw.caches.dynamic import DynamicCache
from haaw.models.llama import Llama

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from support import hugging_face  # noqa: E402
from support.tiny_models import MemorySource  # noqa: E402

from haaw.models.weights import WeightLoader  # noqa: E402

pytestmark = pytest.mark.oracle

TOLERANCE = 1e-4
CHUNK = 50
FACTOR = 20
"""A fault must move some logit by so many tolerances."""

Patch = pytest.MonkeyPatch
Plant = Callable[[Any, Patch], Llama]


@pytest.fixture(scope="module")
def model():
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    return hugging_face.random_model(
        11, num_attention_heads=8, hidden_size=64, num_hidden_layers=2, head_dim=10, rope_scaling=scaling
    )


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return np.random.default_rng(12).integers(0, hugging_face.SHAPE["vocab_size"], 300).tolist()


@pytest.fixture(scope="module")
def expected(model, ids) -> np.ndarray:
    return hugging_face.reference_logits(model, ids)


def with_attend(change: Callable[..., Any]) -> Plant:
    def plant(model: Any, monkeypatch: Patch) -> Llama:
        true = haaw.models.llama.attend
        monkeypatch.setattr(
            haaw.models.llama, "attend", lambda *args, **kwargs: change(true, *args, **kwargs)
        )
        return hugging_face.from_memory(model)

    return plant


def with_config(**changes: Any) -> Plant:
    return lambda model, monkeypatch: hugging_face.from_memory(model, **changes)


def another_scale(true, *args, scale, **kwargs):
    """The scale of the width a head would have by default, 64 / 8, instead of the one that it has."""
    return true(*args, scale=8**-0.5, **kwargs)


def tiled_heads(true, query_THC, key_TKC, *rest, **kwargs):
    """Query head h reads key/value head h mod K instead of h // G."""
    heads, kv_heads = query_THC.shape[1], key_TKC.shape[1]
    order = [head for kv_head in range(kv_heads) for head in range(kv_head, heads, kv_heads)]
    merged_TE = true(query_THC[:, order], key_TKC, *rest, **kwargs)
    mixed_THC = merged_TE.reshape(len(merged_TE), heads, -1)
    return mixed_THC[:, np.argsort(order)].reshape(merged_TE.shape)


def shifted_mask(by: int) -> Plant:
    def plant(model: Any, monkeypatch: Patch) -> Llama:
        true = haaw.models.attention.causal_mask
        monkeypatch.setattr(
            haaw.models.attention, "causal_mask", lambda q_T, k_T, **options: true(q_T + by, k_T, **options)
        )
        return hugging_face.from_memory(model)

    return plant


def shifted_positions(by: int) -> Plant:
    """All positions shifted alike change nothing (RoPE is relative); those of later chunks do."""

    def plant(model: Any, monkeypatch: Patch) -> Llama:
        true = haaw.models.llama.rope_angles

        def spoilt(positions_T, frequency_I, *, dtype):
            return true(positions_T + (by if positions_T[0] > 0 else 0), frequency_I, dtype=dtype)

        monkeypatch.setattr(haaw.models.llama, "rope_angles", spoilt)
        return hugging_face.from_memory(model)

    return plant


def another_layout(model: Any, monkeypatch: Patch) -> Llama:
    """A checkpoint's half-split rows taken for a GGUF's interleaved ones."""
    loader = WeightLoader(MemorySource(hugging_face.checkpoint(model)))
    config = haaw.models.llama.config_from_hugging_face(model.config.to_dict())
    names = haaw.models.llama.HUGGING_FACE_NAMES
    return haaw.models.llama.build(config, loader, names, layout="interleaved")


def forgetful_cache(model: Any, monkeypatch: Patch) -> Llama:
    """Every step's rows are written one position too early, over the last row of the step before."""
    true = DynamicCache.append

    def spoilt(self, layer, key_TKC, value_TKC):
        length = self._length
        self._length = max(length - 1, 0)
        true(self, layer, key_TKC, value_TKC)
        self._length = length

    monkeypatch.setattr(DynamicCache, "append", spoilt)
    return hugging_face.from_memory(model)


FAULTS: dict[str, Plant] = {
    "attention scale": with_attend(another_scale),
    "head order": with_attend(tiled_heads),
    "mask shows the next token": shifted_mask(1),
    "mask hides the token itself": shifted_mask(-1),
    "position one too high after the first chunk": shifted_positions(1),
    "position one too low after the first chunk": shifted_positions(-1),
    "rows of the cache one too early": forgetful_cache,
    "eps 1e-6 for 1e-5": with_config(rms_norm_eps=1e-6),
    "RoPE layout": another_layout,
}


def rope_changes(model: Any, **changes: Any) -> dict[str, Any]:
    return {"rope_parameters": model.config.to_dict()["rope_parameters"] | changes}


FAULTS |= {
    "RoPE base 10,100 for 10,000": lambda model, monkeypatch: hugging_face.from_memory(
        model, **rope_changes(model, rope_theta=10_100.0)
    ),
    "dropped Llama-3 scaling": with_config(rope_parameters={"rope_type": "default", "rope_theta": 10_000.0}),
    "Llama-3 factor 7.9 for 8": lambda model, monkeypatch: hugging_face.from_memory(
        model, **rope_changes(model, factor=7.9)
    ),
}


def test_the_unspoilt_model_agrees(model, ids, expected) -> None:
    ours = all_logits(hugging_face.from_memory(model), ids, chunk=CHUNK)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=TOLERANCE)
    assert hugging_face.highest_attention_weight(model, ids, first_row=32) > 0.5


@pytest.mark.parametrize("plant", FAULTS.values(), ids=FAULTS.keys())
def test_a_planted_fault_is_seen(plant: Plant, model, ids, expected, monkeypatch: Patch) -> None:
    spoilt = all_logits(plant(model, monkeypatch), ids, chunk=CHUNK)
    moved = float(np.abs(spoilt - expected).max())
    print(f"moves the logits by {moved:.3g}, {moved / TOLERANCE:.0f} times the tolerance")
    assert moved >= FACTOR * TOLERANCE

"""Configs from strangers: what changes the result is used or refused by name, numbers are checked.

FAULTS: S46 and S47 (keys read but unused), S49 (head_dim), S66 (numbers chosen by an attacker).
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from haaw.errors import BadInputError
from haaw.models.llama import LlamaConfig, config_from_gguf, config_from_hugging_face
from haaw.ops.rope import Llama3Scaling

HUGGING_FACE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
"""The published numbers of Llama 3.2 1B."""

GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.rope.freq_base": 100000.0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": 49152,
    "llama.rope.dimension_count": 64,
}
"""The published numbers of SmolLM2-135M."""


def from_gguf(**changes: Any) -> LlamaConfig:
    values = GGUF | {f"llama.{key.replace('__', '.')}": value for key, value in changes.items()}
    present = {key: value for key, value in values.items() if value is not None}
    return config_from_gguf(present, {"token_embd.weight": SimpleNamespace(shape=(49152, 576))})


def test_a_published_config_json_is_read() -> None:
    assert config_from_hugging_face(HUGGING_FACE) == LlamaConfig(
        layers=16,
        width=2048,
        query_heads=32,
        kv_heads=8,
        head_dim=64,
        mlp_width=8192,
        vocabulary_size=128256,
        context_length_tokens=131072,
        eps=1e-5,
        rope_base=500000.0,
        rope_scaling=Llama3Scaling(32.0, 1.0, 4.0, 8192),
        tied=True,
    )


def test_a_published_gguf_header_is_read() -> None:
    assert from_gguf() == LlamaConfig(
        layers=30,
        width=576,
        query_heads=9,
        kv_heads=3,
        head_dim=64,
        mlp_width=1536,
        vocabulary_size=49152,
        context_length_tokens=8192,
        eps=1e-5,
        rope_base=100000.0,
        rope_scaling=None,
        tied=True,
    )


def test_a_stated_head_dim_goes_before_the_share_of_the_width() -> None:
    """S49: hidden 12, 4 heads, head_dim 8: 32 query rows, not 12."""
    changes = {"hidden_size": 12, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8}
    assert config_from_hugging_face(HUGGING_FACE | changes).head_dim == 8
    assert (
        from_gguf(attention__key_length=32, attention__value_length=32, rope__dimension_count=32).head_dim
        == 32
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
        {"rope_scaling": {"rope_type": "default"}, "partial_rotary_factor": 1.0},
        {"rope_scaling": None},
        {"rope_scaling": {"type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 1.0}},
    ],
)
def test_no_scaling_has_several_spellings(changes: dict[str, Any]) -> None:
    config = config_from_hugging_face(HUGGING_FACE | changes)
    assert (config.rope_base, config.rope_scaling) == (500000.0, None)


LLAMA_3 = HUGGING_FACE["rope_scaling"]
REFUSED_HUGGING_FACE: dict[str, tuple[dict[str, Any], str]] = {
    "another family": ({"model_type": "mistral"}, "model_type"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act"),
    "biases": ({"attention_bias": True}, "attention_bias"),
    "biases of the MLP": ({"mlp_bias": True}, "mlp_bias"),
    "split products": ({"pretraining_tp": 2}, "pretraining_tp"),
    "cut heads": ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
    "an encoder": ({"is_encoder_decoder": True}, "is_encoder_decoder"),
    "a part of the channels": ({"partial_rotary_factor": 0.25}, "partial_rotary_factor"),
    "a part, inside": ({"rope_scaling": LLAMA_3 | {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    "an unknown key": ({"attention_temperature": 2}, "attention_temperature"),
    "a window": ({"sliding_window": 4096}, "sliding_window"),
    "quantised by another library": ({"quantization_config": {"bits": 4}}, "quantization_config"),
    "linear scaling": ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
    "dynamic scaling": ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
    "yarn": ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
    "an unknown key of the scaling": (
        {"rope_scaling": LLAMA_3 | {"attention_factor": 2.0}},
        "attention_factor",
    ),
    "a factor without a kind": ({"rope_scaling": {"factor": 2.0}}, "factor"),
    "scaling without its factor": ({"rope_scaling": {"rope_type": "llama3"}}, "factor"),
    "scaling that is a list": ({"rope_scaling": [1, 2]}, "scaling"),
    "a kind that is a list": ({"rope_scaling": {"rope_type": ["llama3"]}}, "scaling"),
    "bands in the wrong order": ({"rope_scaling": LLAMA_3 | {"high_freq_factor": 1.0}}, "high_freq_factor"),
    "two scalings": ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "scaling"),
    "two bases": ({"rope_scaling": {"rope_type": "default", "rope_theta": 1e4}}, "rope_theta"),
    "tied by a text": ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
    "no eps": ({"rms_norm_eps": None}, "rms_norm_eps"),
    "no width": ({"hidden_size": None}, "hidden_size"),
    "an odd head": ({"head_dim": 63}, "even"),
    "no channels left": ({"head_dim": None, "hidden_size": 31}, "head_dim"),
}


@pytest.mark.parametrize(("changes", "names"), REFUSED_HUGGING_FACE.values(), ids=REFUSED_HUGGING_FACE.keys())
def test_a_config_json_that_is_not_run_is_refused_by_name(changes: dict[str, Any], names: str) -> None:
    assert names in refusal(lambda: config_from_hugging_face(HUGGING_FACE | changes))


REFUSED_GGUF: dict[str, tuple[dict[str, Any], str]] = {
    "linear scaling": ({"rope__scaling__type": "linear"}, "rope.scaling.type"),
    "a scaling factor alone": ({"rope__scaling__factor": 4.0}, "rope.scaling.factor"),
    "experts": ({"expert_count": 8}, "expert_count"),
    "a window": ({"attention__sliding_window": 4096}, "sliding_window"),
    "values of another width": ({"attention__value_length": 32}, "value_length"),
    "a part of the channels": ({"attention__key_length": 64, "rope__dimension_count": 16}, "dimension_count"),
    "an unknown key": ({"attention__scale": 0.5}, "attention.scale"),
    "heads by layer": ({"attention__head_count": np.array([9] * 30)}, "head_count"),
    "a window by layer": ({"attention__sliding_window": np.array([0, 4096])}, "sliding_window"),
    "a scaling that is a list": ({"rope__scaling__type": ["none"]}, "rope.scaling.type"),
}


@pytest.mark.parametrize(("changes", "names"), REFUSED_GGUF.values(), ids=REFUSED_GGUF.keys())
def test_a_gguf_header_that_is_not_run_is_refused_by_name(changes: dict[str, Any], names: str) -> None:
    assert names in refusal(lambda: from_gguf(**changes))


@pytest.mark.parametrize(
    "value", [0, -1, 2**31, 2**64 - 1, 1.5, float("nan"), "9", True, [9], np.array([9, 9]), None, {}]
)
@pytest.mark.parametrize(
    "key",
    ["attention.head_count", "embedding_length", "block_count", "feed_forward_length", "context_length"],
)
def test_a_count_that_is_no_count_is_refused(key: str, value: Any) -> None:
    assert key in refusal(lambda: from_gguf(**{key.replace(".", "__"): value}))


@pytest.mark.parametrize("value", [0.0, -1e-5, float("inf"), float("nan"), "1e-5", True, [1e-5], None])
def test_an_eps_that_is_no_positive_number_is_refused(value: Any) -> None:
    """S58: no default stands in for a missing eps."""
    assert "layer_norm_rms_epsilon" in refusal(lambda: from_gguf(attention__layer_norm_rms_epsilon=value))


def test_heads_that_cannot_be_shared_evenly_are_refused() -> None:
    assert "9 query heads cannot share 2" in refusal(lambda: from_gguf(attention__head_count_kv=2))
    assert "9 query heads cannot share 10" in refusal(lambda: from_gguf(attention__head_count_kv=10))


def refusal(read: Any) -> str:
    """The one sentence with which `read` refuses."""
    with pytest.raises(BadInputError) as caught:
        read()
    message = str(caught.value)
    assert len(message) < 300
    assert "\n" not in message
    return message

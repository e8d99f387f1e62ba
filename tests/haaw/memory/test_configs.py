"""Shapes read from configs and GGUF metadata of many architectures, and what is said about assumptions."""

import pytest

from haaw.errors import BadInputError
from haaw.memory import PRESETS, needed_bytes, numbers_from_config, numbers_from_gguf

# The keys that matter of the published config.json of each model, as they stand there.
LLAMA_31_8B = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 131_072, "torch_dtype": "bfloat16",
}  # fmt: skip
MISTRAL_7B_V01 = LLAMA_31_8B | {
    "model_type": "mistral",
    "sliding_window": 4096,
    "max_position_embeddings": 32_768,
}
GEMMA_3_27B = {
    "model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 5376, "num_attention_heads": 32, "num_hidden_layers": 62,
        "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024,
    },
    "vision_config": {"num_hidden_layers": 27, "hidden_size": 1152, "num_attention_heads": 16},
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "max_position_embeddings": 163_840, "torch_dtype": "bfloat16",
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "n_positions": 1024,
    "torch_dtype": "float32",
}


@pytest.mark.parametrize(
    ("values", "preset"),
    [
        (LLAMA_31_8B, "llama-3.1-8b"),
        (MISTRAL_7B_V01, "mistral-7b-v0.1"),
        (GEMMA_3_27B, "gemma-3-27b"),
        (DEEPSEEK_V3, "deepseek-v3"),
        (GPT2, "gpt2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_configs_of_real_models_give_their_presets(values, preset):
    numbers, known = numbers_from_config(values), PRESETS[preset]
    assert numbers.positions == known.context
    for context in (1, 1000, 5000, known.context):
        assert needed_bytes(numbers.shape, context).value == needed_bytes(known.shape, context).value
    assert numbers.shape.full_layers == known.shape.full_layers


def test_an_unknown_architecture_works_and_says_what_it_took_for_granted():
    numbers = numbers_from_config(
        {
            "model_type": "none-such",
            "n_layers": 3,
            "n_heads": 4,
            "d_model": 64,
            "max_seq_len": 99,
            "moon": "full",
        }
    )
    assert (numbers.shape.layers, numbers.shape.kv_heads, numbers.shape.head_dim) == (3, 4, 16)
    assert numbers.positions == 99
    told = " ".join(numbers.assumptions)
    assert "each of the 4 query heads has its own" in told
    assert "64 / 4 heads = 16" in told
    assert "2 bytes an element" in told


BASE = {"num_hidden_layers": 6, "num_attention_heads": 4, "hidden_size": 64, "dtype": "float16"}
WINDOWS = {
    "none in Mistral from version 0.2 on": ({"sliding_window": None}, (6, 0)),
    "switched off in Qwen2": (
        {"sliding_window": 9, "use_sliding_window": False, "max_window_layers": 3},
        (6, 0),
    ),
    "from a layer on in Qwen2": (
        {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 4},
        (4, 2),
    ),
    "types of Gemma 3": (
        {"sliding_window": 9, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]},
        (1, 5),
    ),
    "a pattern": ({"sliding_window": 9, "sliding_window_pattern": 2}, (3, 3)),
    "the pattern that Gemma 2 leaves out": ({"sliding_window": 9, "model_type": "gemma2"}, (3, 3)),
    "linear attention of Qwen3-Next": (
        {"layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2},
        (2, 0),
    ),
    "shared caches of Gemma 3n": (
        {
            "sliding_window": 9,
            "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
        },
        (2, 2),
    ),
    "chunks of Llama 4": (
        {"attention_chunk_size": 8, "layer_types": ["chunked_attention"] * 4 + ["full_attention"] * 2},
        (2, 4),
    ),
}


@pytest.mark.parametrize(("changes", "layers"), WINDOWS.values(), ids=WINDOWS.keys())
def test_which_layers_look_how_far_back(changes, layers):
    shape = numbers_from_config({**BASE, **changes}).shape
    assert (shape.full_layers, shape.windowed_layers) == layers


def test_one_key_value_head_for_all():
    shape = numbers_from_config({**BASE, "multi_query": True}).shape
    assert shape.kv_heads == 1
    shape = numbers_from_config({**BASE, "multi_query": True, "multi_query_group_num": 2}).shape
    assert shape.kv_heads == 2


BAD = {
    "no layers": ({"num_hidden_layers": None}, "lacks num_hidden_layers or n_layer"),
    "no heads": ({"num_attention_heads": 0}, "num_attention_heads"),
    "no width": ({"hidden_size": None}, "lacks hidden_size"),
    "a width that does not divide": ({"hidden_size": 65}, "no multiple of 4 heads"),
    "two numbers of layers": ({"n_layer": 7}, "say different things"),
    "values of another width": ({"v_head_dim": 8}, "v_head_dim"),
    "an encoder": ({"is_encoder_decoder": True}, "encoder"),
    "state spaces": ({"hybrid_override_pattern": "M-M*"}, "hybrid_override_pattern"),
    "a strange layer": ({"layer_types": ["magic"] * 6}, "magic"),
    "types of other layers": ({"layer_types": ["full_attention"]}, "each of the 6 layers"),
    "a window without its width": ({"layer_types": ["sliding_attention"] * 6}, "no window is stated"),
    "a strange dtype": ({"dtype": "float7"}, "float7"),
    "a window of text": ({"sliding_window": "long"}, "sliding_window"),
    "more shared layers than there are": ({"num_kv_shared_layers": 6}, "6 of 6 layers"),
}


@pytest.mark.parametrize(("changes", "says"), BAD.values(), ids=BAD.keys())
def test_a_config_that_means_nothing_is_refused_by_name(changes, says):
    with pytest.raises(BadInputError, match=says):
        numbers_from_config({**BASE, **changes})


GGUF = {
    "general.architecture": "x", "x.block_count": 6, "x.attention.head_count": 4, "x.attention.head_count_kv": 2,
    "x.embedding_length": 64, "x.context_length": 100,
}  # fmt: skip


def gguf(**changes):
    named = {f"x.{key.replace('__', '.')}": value for key, value in changes.items()}
    return numbers_from_gguf(GGUF | named, bytes_per_element=4)


def test_a_gguf_of_an_unknown_architecture():
    numbers = gguf()
    shape = numbers.shape
    assert (shape.layers, shape.kv_heads, shape.head_dim, shape.windowed_layers) == (6, 2, 16, 0)
    assert numbers.positions == 100


def test_windows_and_latents_of_a_gguf():
    assert gguf(attention__sliding_window=9).shape.windowed_layers == 6
    assert gguf(attention__sliding_window=9, attention__sliding_window_pattern=3).shape.windowed_layers == 4
    listed = gguf(attention__sliding_window=9, attention__sliding_window_pattern=[True, False, True] * 2)
    assert (listed.shape.windowed_layers, listed.shape.pattern) == (4, "wfw")
    latent = gguf(attention__kv_lora_rank=512, rope__dimension_count=64, attention__key_length=576).shape
    assert latent.elements_per_position == 576
    mixed = gguf(attention__head_count_kv=[0, 2, 0, 2, 0, 2], ssm__state_size=5).shape
    assert (mixed.full_layers, mixed.pattern) == (3, "-f")
    gemma = {key.replace("x.", "gemma3."): value for key, value in GGUF.items()} | {
        "general.architecture": "gemma3",
        "gemma3.attention.sliding_window": 512,
    }
    shape = numbers_from_gguf(gemma, bytes_per_element=2).shape
    assert (shape.full_layers, shape.windowed_layers) == (1, 5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"block_count": 0}, "block_count"),
        ({"attention__head_count_kv": [1, 2, 1, 2, 1, 2]}, "differs between layers"),
        ({"ssm__state_size": 5}, "ssm.state_size"),
        ({"attention__key_length": 16, "attention__value_length": 8}, "value_length"),
        ({"attention__shared_kv_layers": 2}, "shared_kv_layers"),
        ({"embedding_length": 65}, "no multiple of 4 heads"),
        (
            {"attention__sliding_window": 9, "attention__sliding_window_pattern": [True]},
            "1 entries for 6 layers",
        ),
    ],
)
def test_a_gguf_that_means_nothing_is_refused_by_name(changes, says):
    with pytest.raises(BadInputError, match=says):
        gguf(**changes)


def test_a_gguf_without_an_architecture_is_refused():
    with pytest.raises(BadInputError, match=r"general\.architecture"):
        numbers_from_gguf({}, bytes_per_element=4)

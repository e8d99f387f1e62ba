"""GPT-2: minGPT's published intermediates, random models of `transformers`, configs, and what is refused."""

import base64
import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fake_array import FakeLibrary
from support.steps import all_logits
from support.tiny_models import MemorySource

from haaw.caches.dynamic import DynamicCache
from haaw.errors import BadInputError
from haaw.generation.engine import advance
from haaw.generation.language_model import LanguageModel
from haaw.models import gpt2
from haaw.models.gpt2 import GPT2, GPT2Config
from haaw.models.protocol import ConfigError
from haaw.models.weights import WeightLoader
from haaw.ops.attention import softmax
from haaw.ops.op import Op
from haaw.ops.recorder import Recorder, Scope, recording

SMALL: dict[str, Any] = {
    "layers": 2, "width": 24, "heads": 3, "mlp_width": 40, "vocabulary_size": 64, "context_length_tokens": 32,
    "eps": 1e-5, "gelu": "tanh", "attention_scale": 8**-0.5, "tied": True,
}  # fmt: skip


class Everything(Recorder):
    """A recorder that keeps the arguments and results of every operation, by layer, part and name, in order."""

    def __init__(self) -> None:
        self.results: dict[tuple[int | None, str | None, str], list[Any]] = defaultdict(list)
        self.arguments: dict[tuple[int | None, str | None, str], list[Any]] = defaultdict(list)

    def run(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], scope: Scope) -> Any:
        result = op.plain(*args, **kwargs)
        self.arguments[scope.layer, scope.part, op.name].append(args)
        self.results[scope.layer, scope.part, op.name].append(result)
        return result

    def declare(self, name: str, array: Any, scope: Scope) -> None: ...

    def know_weights(self, weights: Mapping[str, Any]) -> None: ...

    def emit(self, kind: str, facts: Mapping[str, Any], scope: Scope) -> None: ...


def random_tensors(seed: int, config: GPT2Config) -> dict[str, np.ndarray]:
    """Random weights under GGUF names, matrices as (out, in)."""
    rng = np.random.default_rng(seed)
    width, mlp_width = config.width, config.mlp_width

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(0, 2 * columns**-0.5, (rows, columns)).astype(np.float32)

    def pair(name: str, weight: np.ndarray) -> dict[str, np.ndarray]:
        bias = rng.normal(0, 0.3, weight.shape[0]).astype(np.float32)
        return {f"{name}.weight": weight, f"{name}.bias": bias}

    def norm(name: str) -> dict[str, np.ndarray]:
        return pair(name, rng.normal(1, 0.2, width).astype(np.float32))

    names = gpt2.GGUF_NAMES
    tensors = {
        names["embedding"]: matrix(config.vocabulary_size, width),
        names["position"]: matrix(config.context_length_tokens, width),
        **norm(names["norm"]),
    }
    if not config.tied:
        tensors[names["output"]] = matrix(config.vocabulary_size, width)
    for number in range(config.layers):
        tensors |= norm(names["attention_norm"].format(number)) | norm(names["mlp_norm"].format(number))
        for part, rows, columns in (
            ("query_key_value", 3 * width, width), ("attention_output", width, width),
            ("up", mlp_width, width), ("down", width, mlp_width),
        ):  # fmt: skip
            tensors |= pair(names[part].format(number), matrix(rows, columns))
    return tensors


def random_gpt2(seed: int, *, xp: Any = np, dtype: str = "float32", **changes: Any) -> GPT2:
    config = GPT2Config(**(SMALL | changes))
    loader = WeightLoader(MemorySource(random_tensors(seed, config)), xp=xp, dtype=dtype)
    return gpt2.build(config, loader, gpt2.GGUF_NAMES, matrices="out-in")


# The published model that sorts letters.


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    described = json.loads(path.read_text())
    return {
        name: np.frombuffer(base64.b64decode(entry["data"]), "<f4").reshape(entry["shape"])
        for name, entry in described.items()
        if "data" in entry
    }


def nano_sort(golden: Path) -> GPT2:
    """Its layers are PyTorch's Linear, stored as (out, in), and its output table is not tied."""
    tensors = read_arrays(golden / "gpt-nano-sort" / "gpt-nano-sort-model.json")
    config = GPT2Config(
        layers=3, width=48, heads=3, mlp_width=192, vocabulary_size=3, context_length_tokens=11, eps=1e-5,
        gelu="tanh", attention_scale=16**-0.5, tied=False,
    )  # fmt: skip
    loader = WeightLoader(MemorySource(tensors))
    return gpt2.build(config, loader, gpt2.hugging_face_names(loader.names), matrices="out-in")


def nano_sort_intermediates(golden: Path, batch: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(what HAAW computed, what PyTorch did) for one row of the batch, under the published names."""
    model = nano_sort(golden)
    published = read_arrays(golden / "gpt-nano-sort" / "gpt-nano-sort-t0-partials.json")
    ids = [int(token_id) for token_id in published.pop("idx")[batch]]
    expected = {name: array[batch if len(array) > 1 else 0] for name, array in published.items()}
    heard = Everything()
    with recording(heard):
        logits_TV = advance(model, DynamicCache(model.cache_layout, model.prototype_Z), ids, rows="all")
    return found_in(heard, logits_TV), expected


def found_in(heard: Everything, logits_TV: Any) -> dict[str, Any]:
    """The recorded values under the published names; q, k, v and att have the head first there."""

    def result(layer: int | None, part: str, op: str, number: int = 0) -> Any:
        return heard.results[layer, part, op][number]

    query_THC, keys_KSC = heard.arguments[0, "attention", "attention_scores"][0][:2]
    values_KSC = heard.arguments[0, "attention", "attention_mix"][0][1]
    return {
        "tok_emb": result(None, "embedding", "embed"),
        "pos_emb": result(None, "embedding", "embed", 1),
        "x": result(None, "embedding", "add"),
        "ln1": result(0, "attention", "layer_norm"),
        "qkv": result(0, "attention", "linear"),
        "q": query_THC.transpose(1, 0, 2),
        "k": keys_KSC,
        "v": values_KSC,
        "att": result(0, "attention", "attention_scores"),
        "attSm": result(0, "attention", "softmax"),
        "y": result(0, "attention", "merge_heads"),
        "yProj": result(0, "attention", "linear", 1),
        "attnResid": result(0, "attention", "add"),
        "ln2": result(0, "mlp", "layer_norm"),
        "fc": result(0, "mlp", "linear"),
        "gelu": result(0, "mlp", "gelu_tanh"),
        "mlp": result(0, "mlp", "linear", 1),
        "mlpResid": result(0, "mlp", "add"),
        "block0": result(0, "mlp", "add"),
        "block1": result(1, "mlp", "add"),
        "block2": result(2, "mlp", "add"),
        "ln_f": result(None, "output", "layer_norm"),
        "lm_head": logits_TV,
        "probs": softmax(logits_TV[None])[0],
    }


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_every_published_intermediate_is_met_by_name(golden: Path, batch: int) -> None:
    found, expected = nano_sort_intermediates(golden, batch)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].shape == array.shape, name
        np.testing.assert_allclose(found[name], array, atol=1e-5, rtol=0, err_msg=name)


def test_the_little_model_sorts(golden: Path) -> None:
    """It was trained to go on with its six letters in order: 2 0 1 0 2 1 → 0 0 1 1 2 2."""
    model = nano_sort(golden)
    cache = DynamicCache(model.cache_layout, model.prototype_Z)
    ids = [2, 0, 1, 0, 2, 1]
    step, answer = ids, []
    for _ in range(6):
        answer.append(int(advance(model, cache, step).argmax()))
        step = answer[-1:]
    assert answer == sorted(ids)


# Against transformers.


def reference(seed: int, **changes: Any) -> Any:
    """A random GPT2LMHeadModel with telling weights and biases, float32, "eager" attention."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    shape = {
        "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": 97, "bos_token_id": 0,
        "eos_token_id": 0,
    }  # fmt: skip
    config = transformers.GPT2Config(**(shape | changes), attn_implementation="eager")
    model = transformers.GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            is_norm = ".ln_" in name and name.endswith("weight")
            spread = 0.3 if weight.ndim == 1 else 1.5 * config.n_embd**-0.5
            weight.normal_(1.0 if is_norm else 0.0, spread, generator=generator)
    return model


def from_reference(model: Any, *, names: str = "with prefix") -> GPT2:
    tensors = {name: weight.detach().numpy() for name, weight in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    if names == "bare":
        tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        length = model.config.n_positions
        tensors |= {f"h.{n}.attn.bias": np.ones((1, 1, length, length)) for n in range(model.config.n_layer)}
    loader = WeightLoader(MemorySource(tensors))
    config = gpt2.config_from_hugging_face(model.config.to_dict())
    return gpt2.build(config, loader, gpt2.hugging_face_names(loader.names), matrices="in-out")


@pytest.mark.oracle
@pytest.mark.parametrize(
    "changes",
    [
        {"activation_function": "gelu_new"},
        {"activation_function": "gelu"},
        {"n_head": 1, "n_inner": 20},
        {"n_embd": 60, "n_head": 12, "n_layer": 1, "activation_function": "gelu"},
        {"scale_attn_weights": False},
        {"tie_word_embeddings": False, "layer_norm_epsilon": 0.1},
    ],
    ids=str,
)
def test_random_models_of_transformers_give_the_same_logits(changes: dict[str, Any], seed: int) -> None:
    import torch

    oracle = reference(seed, **changes)
    ids = np.random.default_rng(seed).integers(0, 97, 64).tolist()  # all positions that there are
    with torch.no_grad():
        expected_TV = oracle(torch.tensor([ids])).logits[0].numpy()
    model = from_reference(oracle)
    for chunk in (None, 1, 7):
        for heads in ("together", "separate"):
            logits_TV = all_logits(model, ids, chunk=chunk, heads=heads)
            np.testing.assert_allclose(logits_TV, expected_TV, atol=1e-4, rtol=0)
    assert abs(expected_TV).max() > 1  # the comparison would see something


@pytest.mark.oracle
def test_the_published_names_without_a_prefix_and_with_masks_are_read_too(seed: int) -> None:
    oracle = reference(seed)
    ids = list(range(20))
    bare = from_reference(oracle, names="bare")
    np.testing.assert_array_equal(all_logits(bare, ids), all_logits(from_reference(oracle), ids))


# On its own.


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
@pytest.mark.parametrize("heads", ["together", "separate"])
def test_cached_steps_give_what_a_whole_pass_gives(gelu: str, heads: str, seed: int) -> None:
    model = random_gpt2(seed, gelu=gelu, dtype="float64")
    ids = np.random.default_rng(seed).integers(0, 64, 32).tolist()
    whole = all_logits(model, ids)
    np.testing.assert_allclose(all_logits(model, ids, chunk=1, heads=heads), whole, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(all_logits(model, ids, chunk=5, heads=heads), whole, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("heads", ["together", "separate"])
def test_a_device_library_runs_the_whole_model(heads: str, seed: int) -> None:
    ids = np.random.default_rng(seed).integers(0, 64, 9).tolist()
    for gelu in ("tanh", "exact"):
        on_device = random_gpt2(seed, xp=FakeLibrary(), gelu=gelu)
        device_logits = [
            np.asarray(logits.get())
            for logits in [
                advance(
                    on_device, DynamicCache(on_device.cache_layout, on_device.prototype_Z), ids, heads=heads
                )
            ]
        ]
        expected = all_logits(random_gpt2(seed, gelu=gelu), ids, heads=heads)[-1:]
        np.testing.assert_allclose(device_logits[0], expected, atol=1e-4)


def test_the_two_gelus_differ_in_the_logits(seed: int) -> None:
    ids = [1, 2, 3, 4]
    tanh, exact = (all_logits(random_gpt2(seed, gelu=gelu), ids) for gelu in ("tanh", "exact"))
    assert 1e-6 < abs(tanh - exact).max() < 0.5


def test_a_tied_table_is_one_array_and_named_once() -> None:
    tied, untied = random_gpt2(1), random_gpt2(1, tied=False)
    assert tied.weights.output_VD is tied.weights.embedding_VD
    assert untied.named_weights().keys() - tied.named_weights().keys() == {"output"}
    assert untied.named_weights()["output"].shape == (64, 24)


def test_float32_weights_never_become_float64(seed: int) -> None:
    heard = Everything()
    model = random_gpt2(seed, gelu="exact")
    with recording(heard):
        advance(model, DynamicCache(model.cache_layout, model.prototype_Z), [1, 2, 3])
    dtypes = {str(array.dtype) for found in heard.results.values() for array in found if array is not None}
    assert "float32" in dtypes
    assert "float64" not in dtypes


def test_the_context_is_the_number_of_position_rows_and_ends_a_request(seed: int) -> None:
    from support.tiny_models import NumberText

    model = LanguageModel("gpt2", random_gpt2(seed), NumberText())
    answer = model.generate([1, 2, 3], max_tokens=100)
    assert answer.finish.reason == "context"
    assert len(answer.prompt_ids) + len(answer.token_ids) == 32


def test_a_position_beyond_the_table_is_refused_and_the_cache_stays_as_it_was() -> None:
    model = random_gpt2(0)
    cache = DynamicCache(model.cache_layout, model.prototype_Z)
    advance(model, cache, [1] * 32)
    with pytest.raises(BadInputError, match=r"33 tokens .* 32 positions"):
        advance(model, cache, [1])
    assert cache.length == 32


# Configs.

CONFIG = {
    "model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 32, "vocab_size": 64,
    "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "n_ctx": 32,
}  # fmt: skip


def test_a_config_with_its_defaults_says_all_that_matters() -> None:
    config = gpt2.config_from_hugging_face(CONFIG)
    assert config.mlp_width == 96
    assert config.attention_scale == pytest.approx(8**-0.5, rel=1e-15)
    assert (config.gelu, config.tied, config.context_length_tokens) == ("tanh", True, 32)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"n_head": 5}, "24 cannot be shared by 5 heads"),
        ({"activation_function": "relu"}, "relu"),
        ({"activation_function": ["gelu"]}, "activation_function"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"scale_attn_weights": "yes"}, "scale_attn_weights"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ({"n_layer": 0}, "n_layer"),
        ({"n_layer": 2.0}, "n_layer"),
        ({"n_positions": None}, "n_positions"),
        ({"layer_norm_epsilon": -1e-5}, "layer_norm_epsilon"),
        ({"rope_theta": 10000.0}, "rope_theta"),
    ],
    ids=str,
)
def test_a_config_that_is_not_understood_is_refused_by_name(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        gpt2.config_from_hugging_face(CONFIG | change)


def test_a_gguf_s_metadata_give_the_same_config_and_unknown_keys_are_refused() -> None:
    metadata = {
        "general.architecture": "gpt2", "gpt2.block_count": 2, "gpt2.embedding_length": 24,
        "gpt2.feed_forward_length": 96, "gpt2.attention.head_count": 3, "gpt2.context_length": 32,
        "gpt2.attention.layer_norm_epsilon": 1e-5,
    }  # fmt: skip
    tensors = MemorySource({"token_embd.weight": np.zeros((64, 24))}).tensors
    assert gpt2.config_from_gguf(metadata, tensors) == gpt2.config_from_hugging_face(CONFIG)
    with pytest.raises(ConfigError, match="alibi"):
        gpt2.config_from_gguf(metadata | {"gpt2.alibi": 8.0}, tensors)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda tensors: tensors.pop("blk.1.ffn_up.bias"), r"blk\.1\.ffn_up\.bias.* missing"),
        (lambda tensors: tensors.update(more=np.zeros(3)), "no place for"),
        (lambda tensors: tensors.update({"output_norm.bias": np.zeros(23)}), r"\(23,\)"),
        (lambda tensors: tensors.update({"position_embd.weight": np.zeros((31, 24))}), r"\(31, 24\)"),
        (lambda tensors: tensors["token_embd.weight"].fill(np.nan), "NaN"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(spoil: Any, complaint: str) -> None:
    config = GPT2Config(**SMALL)
    tensors = random_tensors(0, config)
    spoil(tensors)
    with pytest.raises(ConfigError, match=complaint):
        gpt2.build(config, WeightLoader(MemorySource(tensors)), gpt2.GGUF_NAMES, matrices="out-in")


def test_a_config_of_absurd_size_is_refused_before_memory_is_asked_for() -> None:
    """A table of 2^31 times 2^31 was allocated before its shape was compared with the file's."""
    config = GPT2Config(**(SMALL | {"vocabulary_size": 2**31 - 1, "width": 3 * 2**29}))
    with pytest.raises(ConfigError, match="shape"):
        gpt2.build(
            config, WeightLoader(MemorySource(random_tensors(0, GPT2Config(**SMALL)))), gpt2.GGUF_NAMES,
            matrices="out-in",
        )  # fmt: skip

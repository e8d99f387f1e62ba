"""The Llama family (Llama 1 to 3, SmolLM2, TinyLlama, stories260K and kin), read from top to bottom.

Its choices:
- norms: RMSNorm before attention, before the MLP and at the end; no biases anywhere
- positions: rotary, half-split layout, with or without the Llama-3 scaling
- attention: grouped queries (H query heads share K key/value heads), causal, scale 1/sqrt(C)
- MLP: SwiGLU
- output: the embedding table again (tied), or a table of its own

Queries, keys and values are row windows of one stored array, and so are gate and up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from haaw.arrays import Array, like, to_host
from haaw.caches.protocol import CacheLayout
from haaw.models.attention import attend, causal_masks
from haaw.models.keys import HUGGING_FACE_LIBRARY_KEYS, ConfigKeys
from haaw.models.pack import Pack
from haaw.models.protocol import ConfigError, Heads, Rows
from haaw.models.weights import WeightLoader, unpermute_rope_rows
from haaw.ops.activations import swiglu
from haaw.ops.attention import take_rows
from haaw.ops.embedding import embed
from haaw.ops.linear import add, linear
from haaw.ops.norms import rms_norm
from haaw.ops.recorder import scope
from haaw.ops.rope import Llama3Scaling, rope, rope_angles, rope_frequencies


@dataclass(frozen=True)
class LlamaConfig:
    """The shape of one model. `tied` says that the output table is the embedding table."""

    layers: int
    width: int
    query_heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocabulary_size: int
    context_length_tokens: int
    eps: float
    rope_base: float
    rope_scaling: Llama3Scaling | None
    tied: bool

    def __post_init__(self) -> None:
        if self.query_heads % self.kv_heads:
            raise ConfigError(
                f"{self.query_heads} query heads cannot share {self.kv_heads} key/value heads evenly"
            )
        if self.head_dim % 2:
            raise ConfigError(
                f"a head of {self.head_dim} channels cannot be rotated in pairs; it must be even"
            )


@dataclass(frozen=True)
class LlamaLayer:
    """The arrays of one layer."""

    attention_norm_D: Array
    query_key_value_ZD: Array
    output_DE: Array
    mlp_norm_D: Array
    gate_up_ZD: Array
    down_DF: Array


@dataclass(frozen=True)
class LlamaWeights:
    """The arrays of a model, shaped like the path through it."""

    embedding_VD: Array
    rope_frequency_I: Array
    layers: tuple[LlamaLayer, ...]
    norm_D: Array
    output_VD: Array


@dataclass(frozen=True)
class Llama:
    """A model of the Llama family: config, weights and the forward pass."""

    config: LlamaConfig
    weights: LlamaWeights
    family = "llama"

    def forward(self, pack: Pack, *, heads: Heads = "together", rows: Rows = "last") -> Array:
        """Logits (B, V) of each sequence's last token, or (T, V) of all; appends to the pack's caches."""
        config, weights, dtype = self.config, self.weights, self.cache_layout.dtype
        with scope(part="embedding"):
            x_TD = embed(pack.ids_T, weights.embedding_VD)
            cosine_TR, sine_TR = rope_angles(pack.positions_T, weights.rope_frequency_I, dtype=dtype)
        masks = causal_masks(pack, dtype=dtype)
        for number, layer in enumerate(weights.layers):
            with scope(layer=number, part="attention"):
                normed_TD = rms_norm(x_TD, layer.attention_norm_D, eps=config.eps)
                query_key_value_TZ = linear(normed_TD, layer.query_key_value_ZD)
                query_THC, key_TKC, value_TKC = self._rotated(query_key_value_TZ, cosine_TR, sine_TR)
                merged_TE = attend(
                    query_THC, key_TKC, value_TKC, pack, masks,
                    layer=number, scale=config.head_dim**-0.5, heads=heads,
                )  # fmt: skip
                update_TD = linear(merged_TE, layer.output_DE)
                x_TD = add(x_TD, update_TD)
            with scope(layer=number, part="mlp"):
                normed_TD = rms_norm(x_TD, layer.mlp_norm_D, eps=config.eps)
                gate_up_TZ = linear(normed_TD, layer.gate_up_ZD)
                gate_TF, up_TF = gate_up_TZ[:, : config.mlp_width], gate_up_TZ[:, config.mlp_width :]
                activated_TF = swiglu(gate_TF, up_TF)
                update_TD = linear(activated_TF, layer.down_DF)
                x_TD = add(x_TD, update_TD)
        with scope(part="output"):
            if rows == "last":
                x_TD = x_TD[-1:] if len(pack.spans) == 1 else take_rows(x_TD, pack.last_rows)
            normed_TD = rms_norm(x_TD, weights.norm_D, eps=config.eps)
            logits_TV = linear(normed_TD, weights.output_VD)
        return logits_TV

    def _rotated(self, query_key_value_TZ: Array, cosine_TR: Array, sine_TR: Array) -> tuple[Array, ...]:
        """Queries (T, H, C) and keys (T, K, C), rotated in one go since they lie side by side, and values."""
        queries, keys = self.config.query_heads, self.config.kv_heads
        heads_THC = query_key_value_TZ.reshape(len(query_key_value_TZ), -1, self.config.head_dim)
        rotated_THC = rope(heads_THC[:, : queries + keys], cosine_TR, sine_TR)
        return rotated_THC[:, :queries], rotated_THC[:, queries:], heads_THC[:, queries + keys :]

    @property
    def context_length_tokens(self) -> int:
        """The most positions that the model was made for."""
        return self.config.context_length_tokens

    @property
    def vocabulary_size(self) -> int:
        """Rows of the output table."""
        return self.config.vocabulary_size

    @property
    def cache_layout(self) -> CacheLayout:
        """Keys and values of `kv_heads` heads in every layer, in the dtype of the weights."""
        config = self.config
        return CacheLayout(
            config.layers, config.kv_heads, config.head_dim, str(self.weights.embedding_VD.dtype)
        )

    @property
    def prototype_Z(self) -> Array:
        """An array of the model's library and device."""
        return self.weights.rope_frequency_I

    def named_weights(self) -> dict[str, Array]:
        """Every array by its canonical name; a tied output table is not listed again."""
        weights = self.weights
        named = {"embedding": weights.embedding_VD, "rope.frequency": weights.rope_frequency_I}
        for number, layer in enumerate(weights.layers):
            named |= {
                f"layers.{number}.attention.norm": layer.attention_norm_D,
                f"layers.{number}.attention.query_key_value": layer.query_key_value_ZD,
                f"layers.{number}.attention.output": layer.output_DE,
                f"layers.{number}.mlp.norm": layer.mlp_norm_D,
                f"layers.{number}.mlp.gate_up": layer.gate_up_ZD,
                f"layers.{number}.mlp.down": layer.down_DF,
            }
        named["norm"] = weights.norm_D
        if weights.output_VD is not weights.embedding_VD:
            named["output"] = weights.output_VD
        return named

    @property
    def weights_bytes(self) -> int:
        """Bytes of all arrays together, without what lies unused in the blocks that they are windows on."""
        return sum(int(array.nbytes) for array in self.named_weights().values())


# From files.

GGUF_NAMES = {
    "embedding": "token_embd.weight",
    "norm": "output_norm.weight",
    "output": "output.weight",
    "attention_norm": "blk.{}.attn_norm.weight",
    "query": "blk.{}.attn_q.weight",
    "key": "blk.{}.attn_k.weight",
    "value": "blk.{}.attn_v.weight",
    "attention_output": "blk.{}.attn_output.weight",
    "mlp_norm": "blk.{}.ffn_norm.weight",
    "gate": "blk.{}.ffn_gate.weight",
    "up": "blk.{}.ffn_up.weight",
    "down": "blk.{}.ffn_down.weight",
}
HUGGING_FACE_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "output": "lm_head.weight",
    "attention_norm": "model.layers.{}.input_layernorm.weight",
    "query": "model.layers.{}.self_attn.q_proj.weight",
    "key": "model.layers.{}.self_attn.k_proj.weight",
    "value": "model.layers.{}.self_attn.v_proj.weight",
    "attention_output": "model.layers.{}.self_attn.o_proj.weight",
    "mlp_norm": "model.layers.{}.post_attention_layernorm.weight",
    "gate": "model.layers.{}.mlp.gate_proj.weight",
    "up": "model.layers.{}.mlp.up_proj.weight",
    "down": "model.layers.{}.mlp.down_proj.weight",
}
GGUF_FREQUENCY_FACTORS = "rope_freqs.weight"


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, Any]) -> LlamaConfig:
    """The config that a GGUF of architecture `llama` states; sizes of the vocabulary come from its tensors.

    Errors: `ConfigError` for a missing, impossible or unknown key.
    """
    prefix = "llama."
    own = {key.removeprefix(prefix): metadata[key] for key in metadata if key.startswith(prefix)}
    keys = ConfigKeys(own, "the GGUF's metadata (llama.*)")
    width = keys.integer("embedding_length")
    query_heads = keys.integer("attention.head_count")
    head_dim = keys.integer(
        "attention.key_length", keys.integer("rope.dimension_count", width // query_heads)
    )
    keys.must_be("attention.value_length", head_dim)
    keys.must_be("rope.dimension_count", head_dim)
    keys.must_be("rope.scaling.type", "none")
    keys.must_be("expert_count", 0)
    keys.must_be("expert_used_count", 0)
    keys.must_be("attention.sliding_window", 0)
    keys.ignore(["rope.scaling.finetuned", "rope.scaling.original_context_length"])
    embedding = tensors.get(GGUF_NAMES["embedding"])
    config = LlamaConfig(
        layers=keys.integer("block_count"),
        width=width,
        query_heads=query_heads,
        kv_heads=keys.integer("attention.head_count_kv", query_heads),
        head_dim=head_dim,
        mlp_width=keys.integer("feed_forward_length"),
        vocabulary_size=keys.integer("vocab_size", embedding.shape[0] if embedding is not None else None),
        context_length_tokens=keys.integer("context_length"),
        eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_base=keys.number("rope.freq_base", 10000.0),
        rope_scaling=None,
        tied=GGUF_NAMES["output"] not in tensors,
    )
    keys.finish()
    return config


IGNORED_HUGGING_FACE_KEYS = (
    *HUGGING_FACE_LIBRARY_KEYS,
    # About training, and heads for other uses.
    "attention_dropout", "is_llama_config",
)  # fmt: skip


def config_from_hugging_face(values: Mapping[str, Any]) -> LlamaConfig:
    """The config that a Hugging Face `config.json` of model type `llama` states.

    Errors: `ConfigError` for a missing, impossible or unknown key.
    """
    keys = ConfigKeys(values, "config.json")
    keys.ignore(IGNORED_HUGGING_FACE_KEYS)
    keys.must_be("model_type", "llama")
    keys.must_be("hidden_act", "silu")
    keys.must_be("pretraining_tp", 1)
    keys.must_be("partial_rotary_factor", 1)
    keys.must_be("pruned_heads", {})
    for switch in (
        "attention_bias", "mlp_bias", "rope_interleaved", "is_encoder_decoder", "add_cross_attention",
    ):  # fmt: skip
        keys.must_be(switch, False)
    width, query_heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    base, scaling = _hugging_face_rope(keys)
    config = LlamaConfig(
        layers=keys.integer("num_hidden_layers"),
        width=width,
        query_heads=query_heads,
        kv_heads=keys.integer("num_key_value_heads", query_heads),
        head_dim=keys.integer("head_dim", width // query_heads),
        mlp_width=keys.integer("intermediate_size"),
        vocabulary_size=keys.integer("vocab_size"),
        context_length_tokens=keys.integer("max_position_embeddings"),
        eps=keys.number("rms_norm_eps"),
        rope_base=base,
        rope_scaling=scaling,
        tied=keys.flag("tie_word_embeddings", False),
    )
    keys.finish()
    return config


def _hugging_face_rope(keys: ConfigKeys) -> tuple[float, Llama3Scaling | None]:
    """Base and scaling; written as `rope_theta` and `rope_scaling`, or together as `rope_parameters`."""
    written = [keys.get("rope_parameters"), keys.get("rope_scaling")]
    given = [value for value in written if value is not None]
    scaling = given[0] if given else {}
    if not isinstance(scaling, Mapping) or any(other != scaling for other in given):
        raise ConfigError(f"config.json: the RoPE scaling is {given!r:.60}; one object is needed")
    inner = ConfigKeys(scaling, "config.json, RoPE scaling,")
    base = inner.number("rope_theta", keys.number("rope_theta", 10000.0))
    keys.must_be("rope_theta", base)
    inner.must_be("partial_rotary_factor", 1)
    kind = inner.get("rope_type", inner.get("type", "default"))
    inner.ignore(["type"])
    if kind == "default":
        inner.finish()
        return base, None
    if kind != "llama3":
        raise ConfigError(
            f'config.json: the RoPE scaling "{kind!s:.40}" is not known; HAAW runs default and llama3'
        )
    result = Llama3Scaling(
        factor=inner.number("factor"),
        low_frequency_factor=inner.number("low_freq_factor"),
        high_frequency_factor=inner.number("high_freq_factor"),
        original_context_tokens=inner.integer("original_max_position_embeddings"),
    )
    if result.high_frequency_factor <= result.low_frequency_factor:
        raise ConfigError("config.json: RoPE scaling needs high_freq_factor above low_freq_factor")
    inner.finish()
    return base, result


def build(config: LlamaConfig, loader: WeightLoader, names: Mapping[str, str], *, layout: str) -> Llama:
    """Reads all weights. `layout` is that of the file's query and key rows: "half-split" or "interleaved".

    Errors: `ConfigError` for a tensor that is missing, left over, of a wrong shape or not finite.
    """
    head_counts = (config.query_heads, config.kv_heads)

    def arrange(index: int, part: np.ndarray) -> None:
        if layout == "interleaved" and index < 2:
            unpermute_rope_rows(part, head_counts[index])

    embedding_VD = loader.array(names["embedding"], (config.vocabulary_size, config.width))
    layers = tuple(_read_layer(config, loader, names, number, arrange) for number in range(config.layers))
    frequency_I = _frequencies(config, loader, embedding_VD)
    norm_D = loader.array(names["norm"], (config.width,))
    output_VD = embedding_VD
    if loader.has(names["output"]):
        output_VD = loader.array(names["output"], (config.vocabulary_size, config.width))
        if config.tied and to_host(output_VD == embedding_VD).all():
            output_VD = embedding_VD
    elif not config.tied:
        raise ConfigError(
            f'the tensor "{names["output"]}" is missing, and the config does not tie it to the embedding'
        )
    loader.ignore(f"model.layers.{number}.self_attn.rotary_emb.inv_freq" for number in range(config.layers))
    loader.finish()
    config = replace(config, tied=output_VD is embedding_VD)  # what the file holds counts, not what it says
    return Llama(config, LlamaWeights(embedding_VD, frequency_I, layers, norm_D, output_VD))


def _read_layer(
    config: LlamaConfig, loader: WeightLoader, names: Mapping[str, str], number: int, arrange: Any
) -> LlamaLayer:
    def name(part: str) -> str:
        return names[part].format(number)

    queries, keys = config.query_heads * config.head_dim, config.kv_heads * config.head_dim
    return LlamaLayer(
        attention_norm_D=loader.array(name("attention_norm"), (config.width,)),
        query_key_value_ZD=loader.stacked(
            [name("query"), name("key"), name("value")], [queries, keys, keys], config.width, arrange
        ),
        output_DE=loader.array(name("attention_output"), (config.width, queries)),
        mlp_norm_D=loader.array(name("mlp_norm"), (config.width,)),
        gate_up_ZD=loader.stacked([name("gate"), name("up")], [config.mlp_width] * 2, config.width),
        down_DF=loader.array(name("down"), (config.width, config.mlp_width)),
    )


def _frequencies(config: LlamaConfig, loader: WeightLoader, embedding_VD: Array) -> Array:
    frequency_I = rope_frequencies(config.head_dim, config.rope_base, config.rope_scaling)
    if loader.has(GGUF_FREQUENCY_FACTORS):  # how GGUF states the Llama-3 scaling: one divisor a pair
        factor_I = loader.host(GGUF_FREQUENCY_FACTORS, frequency_I.shape)
        if not (factor_I > 0).all():
            raise ConfigError(f'the tensor "{GGUF_FREQUENCY_FACTORS}" must be positive everywhere')
        frequency_I = frequency_I / factor_I
    return like(frequency_I, embedding_VD)

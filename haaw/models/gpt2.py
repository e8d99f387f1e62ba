"""The GPT-2 family (GPT-2, DistilGPT-2, minGPT's models), read from top to bottom.

Its choices:
- norms: LayerNorm with biases before attention, before the MLP and at the end
- biases: in every product but that of the output
- positions: a learned table, added to the embedding; its rows are the context
- attention: every head has keys and values of its own, causal, scale 1/sqrt(C) (or none)
- MLP: one product up, GELU (tanh form or exact), one product down
- output: the embedding table again (tied), or a table of its own

Queries, keys and values are windows of one product.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from haaw.arrays import Array, to_host
from haaw.caches.protocol import CacheLayout
from haaw.errors import BadInputError
from haaw.models.attention import attend, causal_masks
from haaw.models.keys import HUGGING_FACE_LIBRARY_KEYS, ConfigKeys
from haaw.models.pack import Pack
from haaw.models.protocol import ConfigError, Heads, Rows
from haaw.models.weights import WeightLoader
from haaw.ops.activations import gelu, gelu_tanh
from haaw.ops.attention import take_rows
from haaw.ops.embedding import embed
from haaw.ops.linear import add, linear
from haaw.ops.norms import layer_norm
from haaw.ops.recorder import scope

Gelu = Literal["tanh", "exact"]


@dataclass(frozen=True)
class GPT2Config:
    """The shape of one model. `tied` says that the output table is the embedding table."""

    layers: int
    width: int
    heads: int
    mlp_width: int
    vocabulary_size: int
    context_length_tokens: int
    eps: float
    gelu: Gelu
    attention_scale: float
    tied: bool

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(f"a width of {self.width} cannot be shared by {self.heads} heads evenly")

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        return self.width // self.heads


@dataclass(frozen=True)
class GPT2Layer:
    """The arrays of one layer."""

    attention_norm_D: Array
    attention_norm_bias_D: Array
    query_key_value_ZD: Array
    query_key_value_bias_Z: Array
    output_DE: Array
    output_bias_D: Array
    mlp_norm_D: Array
    mlp_norm_bias_D: Array
    up_FD: Array
    up_bias_F: Array
    down_DF: Array
    down_bias_D: Array


@dataclass(frozen=True)
class GPT2Weights:
    """The arrays of a model, shaped like the path through it."""

    embedding_VD: Array
    position_PD: Array
    layers: tuple[GPT2Layer, ...]
    norm_D: Array
    norm_bias_D: Array
    output_VD: Array


@dataclass(frozen=True)
class GPT2:
    """A model of the GPT-2 family: config, weights and the forward pass."""

    config: GPT2Config
    weights: GPT2Weights
    family = "gpt2"

    def forward(self, pack: Pack, *, heads: Heads = "together", rows: Rows = "last") -> Array:
        """Logits (B, V) of each sequence's last token, or (T, V) of all; appends to the pack's caches.

        Errors: `BadInputError` for a position beyond the table, which array libraries may wrap around.
        """
        config, weights = self.config, self.weights
        self._check_positions(pack)
        with scope(part="embedding"):
            token_TD = embed(pack.ids_T, weights.embedding_VD)
            position_TD = embed(pack.positions_T, weights.position_PD)
            x_TD = add(token_TD, position_TD)
        masks = causal_masks(pack, dtype=self.cache_layout.dtype)
        for number, layer in enumerate(weights.layers):
            with scope(layer=number, part="attention"):
                normed_TD = layer_norm(
                    x_TD, layer.attention_norm_D, layer.attention_norm_bias_D, eps=config.eps
                )
                query_key_value_TZ = linear(normed_TD, layer.query_key_value_ZD, layer.query_key_value_bias_Z)
                query_THC, key_TKC, value_TKC = self._split_heads(query_key_value_TZ)
                merged_TE = attend(
                    query_THC, key_TKC, value_TKC, pack, masks,
                    layer=number, scale=config.attention_scale, heads=heads,
                )  # fmt: skip
                update_TD = linear(merged_TE, layer.output_DE, layer.output_bias_D)
                x_TD = add(x_TD, update_TD)
            with scope(layer=number, part="mlp"):
                normed_TD = layer_norm(x_TD, layer.mlp_norm_D, layer.mlp_norm_bias_D, eps=config.eps)
                up_TF = linear(normed_TD, layer.up_FD, layer.up_bias_F)
                activated_TF = gelu_tanh(up_TF) if config.gelu == "tanh" else gelu(up_TF)
                update_TD = linear(activated_TF, layer.down_DF, layer.down_bias_D)
                x_TD = add(x_TD, update_TD)
        with scope(part="output"):
            if rows == "last":
                x_TD = x_TD[-1:] if len(pack.spans) == 1 else take_rows(x_TD, pack.last_rows)
            normed_TD = layer_norm(x_TD, weights.norm_D, weights.norm_bias_D, eps=config.eps)
            logits_TV = linear(normed_TD, weights.output_VD)
        return logits_TV

    def _check_positions(self, pack: Pack) -> None:
        longest = max(span.cache.length + span.stop - span.start for span in pack.spans)
        if longest > self.config.context_length_tokens:
            raise BadInputError(
                f"a sequence of {longest} tokens is longer than the {self.config.context_length_tokens} "
                "positions that this model has learned; use a shorter one"
            )

    def _split_heads(self, query_key_value_TZ: Array) -> tuple[Array, Array, Array]:
        """Windows on queries (T, H, C), keys and values (T, K, C): nothing is copied."""
        heads = self.config.heads
        heads_THC = query_key_value_TZ.reshape(len(query_key_value_TZ), 3 * heads, self.config.head_dim)
        return heads_THC[:, :heads], heads_THC[:, heads : 2 * heads], heads_THC[:, 2 * heads :]

    @property
    def context_length_tokens(self) -> int:
        """Rows of the table of positions."""
        return self.config.context_length_tokens

    @property
    def vocabulary_size(self) -> int:
        """Rows of the output table."""
        return self.config.vocabulary_size

    @property
    def cache_layout(self) -> CacheLayout:
        """Keys and values of all heads in every layer, in the dtype of the weights."""
        config = self.config
        return CacheLayout(config.layers, config.heads, config.head_dim, str(self.weights.embedding_VD.dtype))

    @property
    def prototype_Z(self) -> Array:
        """An array of the model's library and device: there are no frequencies here, so one number of a norm."""
        return self.weights.norm_D[:1]

    def named_weights(self) -> dict[str, Array]:
        """Every array by its canonical name; a tied output table is not listed again."""
        weights = self.weights
        named = {"embedding": weights.embedding_VD, "position": weights.position_PD}
        for number, layer in enumerate(weights.layers):
            named |= {
                f"layers.{number}.attention.norm": layer.attention_norm_D,
                f"layers.{number}.attention.norm.bias": layer.attention_norm_bias_D,
                f"layers.{number}.attention.query_key_value": layer.query_key_value_ZD,
                f"layers.{number}.attention.query_key_value.bias": layer.query_key_value_bias_Z,
                f"layers.{number}.attention.output": layer.output_DE,
                f"layers.{number}.attention.output.bias": layer.output_bias_D,
                f"layers.{number}.mlp.norm": layer.mlp_norm_D,
                f"layers.{number}.mlp.norm.bias": layer.mlp_norm_bias_D,
                f"layers.{number}.mlp.up": layer.up_FD,
                f"layers.{number}.mlp.up.bias": layer.up_bias_F,
                f"layers.{number}.mlp.down": layer.down_DF,
                f"layers.{number}.mlp.down.bias": layer.down_bias_D,
            }
        named |= {"norm": weights.norm_D, "norm.bias": weights.norm_bias_D}
        if weights.output_VD is not weights.embedding_VD:
            named["output"] = weights.output_VD
        return named


# From files.

GGUF_NAMES = {
    "embedding": "token_embd.weight",
    "position": "position_embd.weight",
    "norm": "output_norm",
    "output": "output.weight",
    "attention_norm": "blk.{}.attn_norm",
    "query_key_value": "blk.{}.attn_qkv",
    "attention_output": "blk.{}.attn_output",
    "mlp_norm": "blk.{}.ffn_norm",
    "up": "blk.{}.ffn_up",
    "down": "blk.{}.ffn_down",
}
HUGGING_FACE_NAMES = {
    "embedding": "wte.weight",
    "position": "wpe.weight",
    "norm": "ln_f",
    "attention_norm": "h.{}.ln_1",
    "query_key_value": "h.{}.attn.c_attn",
    "attention_output": "h.{}.attn.c_proj",
    "mlp_norm": "h.{}.ln_2",
    "up": "h.{}.mlp.c_fc",
    "down": "h.{}.mlp.c_proj",
}
HUGGING_FACE_MASKS = ("h.{}.attn.bias", "h.{}.attn.masked_bias")


def hugging_face_names(tensors: Collection[str]) -> dict[str, str]:
    """The names in a Hugging Face file, whose base model may stand under `transformer.` or alone."""
    prefix = "transformer." if "transformer.wte.weight" in tensors else ""
    return {part: prefix + name for part, name in HUGGING_FACE_NAMES.items()} | {"output": "lm_head.weight"}


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, Any]) -> GPT2Config:
    """The config that a GGUF of architecture `gpt2` states; sizes of the tables come from its tensors.

    Errors: `ConfigError` for a missing, impossible or unknown key.
    """
    prefix = "gpt2."
    own = {key.removeprefix(prefix): metadata[key] for key in metadata if key.startswith(prefix)}
    keys = ConfigKeys(own, "the GGUF's metadata (gpt2.*)")
    embedding = tensors.get(GGUF_NAMES["embedding"])
    width, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    keys.must_be("attention.head_count_kv", heads)
    config = GPT2Config(
        layers=keys.integer("block_count"),
        width=width,
        heads=heads,
        mlp_width=keys.integer("feed_forward_length", 4 * width),
        vocabulary_size=keys.integer("vocab_size", embedding.shape[0] if embedding is not None else None),
        context_length_tokens=keys.integer("context_length"),
        eps=keys.number("attention.layer_norm_epsilon"),
        gelu="tanh",
        attention_scale=_scale(width, heads),
        tied=GGUF_NAMES["output"] not in tensors,
    )
    keys.finish()
    return config


GELU_BY_NAME: dict[str, Gelu] = {
    "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "exact", "gelu_python": "exact",
}  # fmt: skip
IGNORED_HUGGING_FACE_KEYS = (
    *HUGGING_FACE_LIBRARY_KEYS,
    # About training, and heads for other uses.
    "n_ctx", "attn_pdrop", "embd_pdrop", "resid_pdrop", "gradient_checkpointing", "_num_labels",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "output_past",
)  # fmt: skip


def config_from_hugging_face(values: Mapping[str, Any]) -> GPT2Config:
    """The config that a Hugging Face `config.json` of model type `gpt2` states.

    Errors: `ConfigError` for a missing, impossible or unknown key.
    """
    keys = ConfigKeys(values, "config.json")
    keys.ignore(IGNORED_HUGGING_FACE_KEYS)
    keys.must_be("model_type", "gpt2")
    keys.must_be("pruned_heads", {})
    for switch in (
        "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention", "is_encoder_decoder",
    ):  # fmt: skip
        keys.must_be(switch, False)
    keys.must_be("activation_function", *GELU_BY_NAME)
    width, heads = keys.integer("n_embd"), keys.integer("n_head")
    config = GPT2Config(
        layers=keys.integer("n_layer"),
        width=width,
        heads=heads,
        mlp_width=keys.integer("n_inner", 4 * width),
        vocabulary_size=keys.integer("vocab_size"),
        context_length_tokens=keys.integer("n_positions"),
        eps=keys.number("layer_norm_epsilon", 1e-5),
        gelu=GELU_BY_NAME[keys.get("activation_function", "gelu_new")],
        attention_scale=_scale(width, heads) if keys.flag("scale_attn_weights", True) else 1.0,
        tied=keys.flag("tie_word_embeddings", True),
    )
    keys.finish()
    return config


def _scale(width: int, heads: int) -> float:
    return 1 / math.sqrt(width / heads)


def build(
    config: GPT2Config,
    loader: WeightLoader,
    names: Mapping[str, str],
    *,
    matrices: Literal["out-in", "in-out"],
) -> GPT2:
    """Reads all weights. `matrices` is the order of the axes of the file's matrices, tables excepted.

    Errors: `ConfigError` for a tensor that is missing, left over, of a wrong shape or not finite.
    """
    width = config.width
    embedding_VD = loader.array(names["embedding"], (config.vocabulary_size, width))
    position_PD = loader.array(names["position"], (config.context_length_tokens, width))
    layers = tuple(_read_layer(config, loader, names, number, matrices) for number in range(config.layers))
    norm_D, norm_bias_D = _read_norm(loader, names["norm"], width)
    output_VD = embedding_VD
    if loader.has(names["output"]):
        output_VD = loader.array(names["output"], (config.vocabulary_size, width))
        if config.tied and to_host(output_VD == embedding_VD).all():
            output_VD = embedding_VD
    elif not config.tied:
        raise ConfigError(
            f'the tensor "{names["output"]}" is missing, and the config does not tie it to the embedding'
        )
    prefix = names["embedding"].removesuffix(HUGGING_FACE_NAMES["embedding"])
    loader.ignore(
        prefix + mask.format(number) for mask in HUGGING_FACE_MASKS for number in range(config.layers)
    )
    loader.finish()
    config = replace(config, tied=output_VD is embedding_VD)  # what the file holds counts, not what it says
    return GPT2(config, GPT2Weights(embedding_VD, position_PD, layers, norm_D, norm_bias_D, output_VD))


def _read_layer(
    config: GPT2Config,
    loader: WeightLoader,
    names: Mapping[str, str],
    number: int,
    matrices: Literal["out-in", "in-out"],
) -> GPT2Layer:
    width, mlp_width = config.width, config.mlp_width

    def norm(part: str) -> tuple[Array, Array]:
        return _read_norm(loader, names[part].format(number), width)

    def product(part: str, rows: int, columns: int) -> tuple[Array, Array]:
        name = names[part].format(number)
        weight_ZA = loader.array(f"{name}.weight", (rows, columns), stored=matrices)
        return weight_ZA, loader.array(f"{name}.bias", (rows,))

    return GPT2Layer(
        *norm("attention_norm"),
        *product("query_key_value", 3 * width, width),
        *product("attention_output", width, width),
        *norm("mlp_norm"),
        *product("up", mlp_width, width),
        *product("down", width, mlp_width),
    )


def _read_norm(loader: WeightLoader, name: str, width: int) -> tuple[Array, Array]:
    return loader.array(f"{name}.weight", (width,)), loader.array(f"{name}.bias", (width,))

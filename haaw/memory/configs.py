"""Reading a cache's shape from a model's `config.json`, of whatever architecture, and saying what was assumed.

A key that changes the cache in a way that the arithmetic does not know is refused by name.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from haaw.memory.config_layers import window_and_pattern
from haaw.memory.config_reader import ConfigReader, ModelNumbers
from haaw.memory.shape import CacheShape
from haaw.models.protocol import ConfigError

NOT_KNOWN = (
    "global_head_dim", "num_global_key_value_heads", "cross_attention_layers", "attn_layer_period",
    "attn_layer_indices", "hybrid_override_pattern", "block_types", "ssm_cfg", "ssm_state_size", "state_size",
    "mamba_d_state", "layers_block_type", "full_attn_idxs", "attention_hidden_size", "compress_ratios",
    "index_head_dim",
)  # fmt: skip
"""Keys of architectures whose layers differ in other ways: state spaces, cross-attention, widths by layer, indexers."""

DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}


def numbers_from_config(
    values: Mapping[str, Any], *, bytes_per_element: float | None = None, where: str = "config.json"
) -> ModelNumbers:
    """The shape that a Hugging Face config states; the text model's part of one with several.

    `bytes_per_element` stands before the config's dtype. Errors: `ConfigError` for what is missing, impossible or
    not known to the arithmetic.
    """
    inner = values.get("text_config")
    if isinstance(inner, Mapping):
        outer_dtype = {key: values[key] for key in ("torch_dtype", "dtype") if key in values}
        result = numbers_from_config(
            {**outer_dtype, **inner}, bytes_per_element=bytes_per_element, where=f"{where}, text_config,"
        )
        return result
    read = ConfigReader(values, where)
    _refuse_what_is_not_known(read)
    layers = read.needed("layers")
    kv_heads, head_dim = _heads(read)
    latent_width, rope_width = _latent(read)
    window, pattern = window_and_pattern(read, layers)
    shape = CacheShape(
        layers,
        kv_heads,
        head_dim,
        _element_bytes(read) if bytes_per_element is None else bytes_per_element,
        window=window,
        pattern=pattern,
        latent_width=latent_width,
        rope_width=rope_width,
    )
    architecture = str(values.get("model_type", "unknown"))[:40]
    return ModelNumbers(shape, read.number("positions"), architecture, tuple(read.assumptions))


def _refuse_what_is_not_known(read: ConfigReader) -> None:
    for key in NOT_KNOWN:
        if read.values.get(key) not in (None, [], {}):
            raise ConfigError(
                f'{read.where} has "{key}", whose effect on the cache is not known; give the numbers themselves'
            )
    if read.keys.flag("is_encoder_decoder", False):
        raise ConfigError(
            f"{read.where} is of an encoder with a decoder; the arithmetic is for decoders alone"
        )


def _heads(read: ConfigReader) -> tuple[int, int]:
    heads = read.needed("heads")
    kv_heads = read.number("kv_heads")
    multi_query = read.keys.flag("multi_query", False) and not read.keys.flag(
        "new_decoder_architecture", False
    )
    if multi_query and read.values.get("multi_query_group_num") is None:
        kv_heads = 1
        read.assumptions.append("multi_query: all query heads share one key/value head")
    if kv_heads is None:
        kv_heads = heads
        read.assumptions.append(
            f"no number of key/value heads is stated: each of the {heads} query heads has its own"
        )
    if (head_dim := read.number("head_dim")) is None:
        width = read.needed("width")
        if width % heads:
            raise ConfigError(
                f"{read.where}: a width of {width} is no multiple of {heads} heads; state head_dim"
            )
        head_dim = width // heads
        read.assumptions.append(f"no head width is stated: {width} / {heads} heads = {head_dim}")
    for key in ("v_head_dim", "value_head_dim"):
        value = read.values.get(key)
        if read.values.get("kv_lora_rank") is None and value not in (None, head_dim):
            raise ConfigError(
                f'{read.where}: "{key}" is {value!r:.20} beside keys of width {head_dim}; one width is needed'
            )
    return kv_heads, head_dim


def _latent(read: ConfigReader) -> tuple[int, int]:
    if read.values.get("kv_lora_rank") is None:
        return 0, 0
    latent, rope = read.keys.integer("kv_lora_rank"), read.keys.integer("qk_rope_head_dim", 0, least=0)
    read.assumptions.append(
        f"latent attention: a position holds {latent} + {rope} elements a layer, as the model's authors store it; "
        "a program that stores keys and values of all heads needs more"
    )
    return latent, rope


def _element_bytes(read: ConfigReader) -> float | Fraction:
    named = read.values.get("torch_dtype", read.values.get("dtype"))
    if named is None:
        read.assumptions.append("no dtype is stated: 2 bytes an element (16-bit floats)")
        return 2
    name = str(named).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise ConfigError(f"{read.where}: the dtype {name!r:.40} is not known; give --bytes-per-element")
    size = DTYPE_BYTES[name]
    read.assumptions.append(
        f"keys and values are stored as the weights' dtype, {name}: {size} bytes an element"
    )
    return size

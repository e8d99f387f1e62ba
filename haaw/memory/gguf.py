"""Reading a cache's shape from a GGUF file's metadata, of whatever architecture.

Key names: the GGUF specification of the ggml project (docs/gguf.md) and its `gguf` package.
"""

from collections.abc import Mapping
from typing import Any

from haaw.memory.config_layers import shortest_pattern
from haaw.memory.config_reader import ModelNumbers
from haaw.memory.shape import CacheShape
from haaw.models.keys import ConfigKeys
from haaw.models.protocol import ConfigError

PATTERN_DEFAULTS = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4}
"""Every nth layer has no window, where older files leave the pattern to the program (llama.cpp, `set_swa_pattern`)."""


def numbers_from_gguf(
    metadata: Mapping[str, Any], *, bytes_per_element: float, where: str = "the GGUF's metadata"
) -> ModelNumbers:
    """The shape that a GGUF file states. Errors: `ConfigError` for what is missing, impossible or not known."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise ConfigError(f'{where} lacks "general.architecture"')
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): metadata[key] for key in metadata if key.startswith(prefix)}
    keys = ConfigKeys(own, f"{where} ({prefix:.40}*)")
    strange = next((key for key in own if key.startswith(("ssm.", "wkv."))), None)
    if strange is not None and not _is_list(own.get("attention.head_count_kv")):
        raise ConfigError(
            f'{where} has "{prefix}{strange}": its layers are not all attention; give the numbers'
        )
    if own.get("attention.shared_kv_layers"):
        raise ConfigError(f'{where} has "{prefix}attention.shared_kv_layers"; give the numbers themselves')
    layers = keys.integer("block_count")
    assumptions: list[str] = []
    kv_heads, letters = _kv_heads(own, keys, layers, assumptions)
    latent_width = (
        keys.integer("attention.kv_lora_rank") if own.get("attention.kv_lora_rank") is not None else 0
    )
    rope_width = keys.integer("rope.dimension_count", 0, least=0) if latent_width else 0
    window = keys.integer("attention.sliding_window", 0, least=0) or None
    if window is not None:
        letters = _windows(own, keys, architecture, layers, letters, assumptions)
    shape = CacheShape(
        layers,
        kv_heads,
        _head_dim(own, keys, bool(latent_width)),
        bytes_per_element,
        window=window if "w" in letters or not letters else None,
        pattern=shortest_pattern(letters) if len(set(letters)) > 1 else "",
        latent_width=latent_width,
        rope_width=rope_width,
    )
    positions = keys.integer("context_length") if own.get("context_length") is not None else None
    return ModelNumbers(shape, positions, architecture[:40], tuple(assumptions))


def _is_list(value: Any) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, str)


def _kv_heads(
    own: Mapping[str, Any], keys: ConfigKeys, layers: int, assumptions: list[str]
) -> tuple[int, str]:
    """Key/value heads, and letters of the layers where some have none."""
    value = own.get("attention.head_count_kv")
    if not _is_list(value):
        heads = None if _is_list(own.get("attention.head_count")) else keys.integer("attention.head_count")
        return keys.integer("attention.head_count_kv", heads), ""
    counts = [int(each) for each in value or ()]
    some = {count for count in counts if count}
    if len(counts) != layers or len(some) != 1 or min(counts) < 0:
        raise ConfigError(
            f'"attention.head_count_kv" differs between layers ({sorted(some)!r:.40}); the arithmetic takes one number'
        )
    if 0 in counts:
        assumptions.append(
            f"{counts.count(0)} of {layers} layers have no key/value heads; a state of theirs is not counted here"
        )
    return some.pop(), "".join("f" if count else "-" for count in counts)


def _head_dim(own: Mapping[str, Any], keys: ConfigKeys, latent: bool) -> int:
    if own.get("attention.key_length") is None:
        width, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
        if width % heads:
            raise ConfigError(
                f"a width of {width} is no multiple of {heads} heads; the file states no key_length"
            )
        return width // heads
    head_dim = keys.integer("attention.key_length")
    if not latent and keys.integer("attention.value_length", head_dim) != head_dim:
        raise ConfigError(
            f'"attention.value_length" is {own["attention.value_length"]} beside keys of width {head_dim}; '
            "the arithmetic takes one width"
        )
    return head_dim


def _windows(
    own: Mapping[str, Any],
    keys: ConfigKeys,
    architecture: str,
    layers: int,
    letters: str,
    assumptions: list[str],
) -> str:
    letters = letters or "f" * layers
    pattern = own.get("attention.sliding_window_pattern", PATTERN_DEFAULTS.get(architecture))
    if pattern is None:
        assumptions.append("no pattern is stated: every layer has the window")
        return letters.replace("f", "w")
    if _is_list(pattern):
        if len(pattern) != layers:
            raise ConfigError(
                f'"attention.sliding_window_pattern" has {len(pattern)} entries for {layers} layers'
            )
        windowed = [bool(each) for each in pattern]
    else:
        every = keys.integer("attention.sliding_window_pattern", pattern)
        windowed = [bool((layer + 1) % every) for layer in range(layers)]
        if own.get("attention.sliding_window_pattern") is None:
            assumptions.append(f"no pattern is stated; in {architecture} one layer in {every} has no window")
    return "".join(
        "w" if letter == "f" and has_window else letter
        for letter, has_window in zip(letters, windowed, strict=True)
    )

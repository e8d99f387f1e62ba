"""Which layers of a config look how far back: windows, patterns, shared caches, layers that are no attention."""

from typing import Any

from haaw.memory.config_reader import ConfigReader
from haaw.memory.shape import LARGEST
from haaw.models.protocol import ConfigError

LAYER_LETTERS = {
    "full_attention": "f",
    "attention": "f",
    "global_attention": "f",
    "sliding_attention": "w",
    "local_attention": "w",
    "chunked_attention": "w",
    "linear_attention": "-",
    "conv": "-",
    "mamba": "-",
    "mamba2": "-",
    "recurrent": "-",
}


def window_and_pattern(read: ConfigReader, layers: int) -> tuple[int | None, str]:
    """The window, and which layers have it."""
    types = read.values.get("layer_types")
    chunked = isinstance(types, list) and "chunked_attention" in types
    key = "attention_chunk_size" if chunked else "sliding_window"
    window = read.keys.integer(key) if read.values.get(key) is not None else None
    if window is not None and read.keys.flag("use_sliding_window", True) is False:
        window = None
        read.assumptions.append("use_sliding_window is false: no layer has a window")
    letters = _letters(read, layers, types, window)
    shared = read.values.get("num_kv_shared_layers")
    if shared not in (None, 0):
        count = read.keys.integer("num_kv_shared_layers")
        if count >= layers:
            raise ConfigError(f'{read.where}: "num_kv_shared_layers" is {count} of {layers} layers')
        letters = (letters or ("f" if window is None else "w") * layers)[: layers - count] + "-" * count
        read.assumptions.append(
            f"the last {count} layers use the cache of earlier ones and have none of their own"
        )
    if "-" in letters and shared in (None, 0):
        read.assumptions.append(
            f"{letters.count('-')} of {layers} layers have a state of a fixed size, which is not counted here"
        )
    if "w" not in letters and letters:
        window = None
    if chunked:
        read.assumptions.append(
            f"attention in chunks of {window:,}: counted as a window, the most that it needs"
        )
    return window, shortest_pattern(letters) if set(letters) not in ({"f"}, {"w"}) else ""


def _letters(read: ConfigReader, layers: int, types: Any, window: int | None) -> str:
    """One letter a layer, or "" where all are alike."""
    if types is not None:
        if not isinstance(types, list) or len(types) != layers:
            raise ConfigError(
                f'{read.where}: "layer_types" must name the type of each of the {layers} layers'
            )
        strange = next(
            (each for each in types if not isinstance(each, str) or each not in LAYER_LETTERS), None
        )
        if strange is not None:
            raise ConfigError(f"{read.where}: the layer type {strange!r:.40} is not known to the arithmetic")
        letters = "".join(LAYER_LETTERS[each] for each in types)
        if window is None and "w" in letters:
            if read.values.get("use_sliding_window") is not False:
                raise ConfigError(
                    f'{read.where}: "layer_types" has layers with a window, but no window is stated'
                )
            letters = letters.replace("w", "f")
        return letters
    if window is None:
        return ""
    for key in ("sliding_window_pattern", "_sliding_window_pattern"):
        if read.values.get(key) is not None:
            return _every(read.keys.integer(key), layers)
    if read.values.get("use_sliding_window") is True and read.values.get("max_window_layers") is not None:
        first = min(layers, read.keys.integer("max_window_layers", least=0))
        return "f" * first + "w" * (layers - first)
    if (every := read.defaults.get("sliding_window_pattern")) is not None:
        read.assumptions.append(
            f"{read.where} does not state a pattern; in {read.values['model_type']} one layer in {every} has no window"
        )
        return _every(every, layers)
    read.assumptions.append(f"no pattern is stated: all {layers} layers have the window of {window:,}")
    return ""


def _every(step: int, layers: int) -> str:
    """All layers with the window but every `step`th."""
    if step > LARGEST["layers"]:
        return "w" * layers
    return (("w" * (step - 1) + "f") * (layers // step + 1))[:layers]


def shortest_pattern(letters: str) -> str:
    """The shortest beginning that, repeated, gives all letters."""
    for length in range(1, len(letters)):
        if all(letters[index] == letters[index % length] for index in range(length, len(letters))):
            return letters[:length]
    return letters

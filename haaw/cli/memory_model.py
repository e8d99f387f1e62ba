"""Where `haaw memory` takes its numbers from: options, a preset, or the headers of a model's file, no weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from haaw.errors import BadInputError
from haaw.memory.config_reader import ModelNumbers
from haaw.memory.configs import numbers_from_config
from haaw.memory.gguf import numbers_from_gguf
from haaw.memory.plan import DEFAULT_CONTEXT
from haaw.memory.presets import PRESETS
from haaw.memory.shape import CacheShape

HAAW_ELEMENT_BYTES = 4
AS_HAAW_RUNS_IT = "weights and cache as HAAW runs the model: float32, 4 bytes an element"
OF_THE_MODEL = ("layers", "kv_heads", "head_dim", "window", "pattern", "latent_width", "rope_width")
"""Numbers that a model fixes; an option may repeat them, but not say otherwise."""


@dataclass(frozen=True)
class Source:
    """What a model or the options say: shape, context, bytes of the weights, and what was assumed."""

    name: str
    shape: CacheShape
    context: int | None
    weights_bytes: int
    assumptions: tuple[str, ...]


def source_from(model: str | None, given: Mapping[str, Any]) -> Source:
    """The numbers of a model with what the options add to them, or of the options alone.

    `given` has the options that were used, named as in `CacheShape`. Errors: `BadInputError` where the two contradict
    one another, or numbers are missing.
    """
    if model is None and any(name in given for name in OF_THE_MODEL):
        return _from_options(given)
    source = (
        _from_preset("reference") if model is None else _from_model(model, given.get("bytes_per_element"))
    )
    shape, notes = source.shape, list(source.assumptions)
    for name in OF_THE_MODEL:
        if name not in given:
            continue
        own, wanted = getattr(shape, name), given[name]
        if name == "window" and own is None:
            notes.append(f"{source.name} has no window: keeping {wanted:,} positions is an approximation")
            shape = replace(shape, window=wanted)
        elif own != wanted and not _same_pattern(shape, name, wanted):
            option = f"--{name.replace('_', '-')}"
            raise BadInputError(
                f"{option} is {wanted!r}, but {source.name} has {own!r}; leave one of them out"
            )
    free = {name: given[name] for name in ("bytes_per_element", "block_size", "sinks") if name in given}
    return replace(source, shape=replace(shape, **free), assumptions=tuple(notes))


def chosen_context(source: Source, context: int | None, window: int | None) -> int:
    """The positions to plan for: those asked for, else the model's whole context, else a default.

    Errors: `BadInputError` for fewer than one, more than the model has, or a window that is wider.
    """
    chosen = context or (source.context if source.context is not None else DEFAULT_CONTEXT)
    if context is not None and context < 1:
        raise BadInputError(f"--context is {context}; at least 1 position is needed")
    if context is not None and source.context is not None and context > source.context:
        raise BadInputError(f"--context is {context:,}, but {source.name} has {source.context:,} positions")
    if window is not None and window > chosen:
        raise BadInputError(
            f"--window is {window:,}, beyond the context of {chosen:,}; it would change nothing"
        )
    return chosen


def _same_pattern(shape: CacheShape, name: str, wanted: Any) -> bool:
    """Whether another way of writing a pattern means the same layers."""
    if name != "pattern":
        return False
    other = replace(shape, pattern=wanted)
    length = shape.layers
    spelled = [(each.pattern or ("w" if each.window else "f")) * length for each in (shape, other)]
    return spelled[0][:length] == spelled[1][:length]


def _from_options(given: Mapping[str, Any]) -> Source:
    missing = [name for name in ("layers", "kv_heads", "head_dim") if name not in given]
    if "latent_width" in given:
        missing = [name for name in missing if name == "layers"]
    if missing:
        told = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise BadInputError(
            f"{told} missing: give --layers, --kv-heads and --head-dim together, or name a model"
        )
    shape = CacheShape(**{"kv_heads": 1, "head_dim": 1, **given})
    notes = [] if "bytes_per_element" in given else ["2 bytes an element (16-bit floats)"]
    return Source("the numbers given", shape, None, 0, tuple(notes))


def _from_preset(name: str) -> Source:
    preset = PRESETS[name]
    return Source(
        preset.title, preset.shape, preset.context, preset.weights_bytes, (f"source: {preset.source}",)
    )


def _from_model(model: str, bytes_per_element: float | None) -> Source:
    from haaw.loading import find
    from weights_tools.formats.errors import FormatError

    path = Path(model)
    try:
        if path.suffix == ".json" and path.is_file():
            return _from_config(path, bytes_per_element)
        if model in PRESETS:
            return _known(model, bytes_per_element)
        if path.is_dir() and (path / "config.json").is_file():
            return _from_folder(path, bytes_per_element)
        return _from_file(find(model), model, bytes_per_element)
    except FormatError as error:
        raise BadInputError(str(error)) from error


def _known(model: str, bytes_per_element: float | None) -> Source:
    """A model known by name: its file where it is here, else the published numbers."""
    from haaw.loading import find
    from weights_tools.catalog import CATALOG

    if model in CATALOG:
        try:
            return _from_file(find(model), model, bytes_per_element)
        except BadInputError:
            source = _from_preset(model)
            note = "the model's file is not here: numbers as published"
            return replace(source, assumptions=(note, *source.assumptions))
    return _from_preset(model)


def _from_folder(folder: Path, bytes_per_element: float | None) -> Source:
    from haaw.models.families import FAMILIES
    from weights_tools.formats.safetensors_file import open_sharded

    runs = _config_of(folder / "config.json").get("model_type") in FAMILIES
    source = _from_config(folder / "config.json", bytes_per_element or (HAAW_ELEMENT_BYTES if runs else None))
    if not any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        return source
    with open_sharded(folder) as file:
        weights_bytes, elements = _weights_of(file.tensors)
    if not runs:
        return replace(source, weights_bytes=weights_bytes)
    notes = (AS_HAAW_RUNS_IT, *source.assumptions)
    return replace(source, weights_bytes=elements * HAAW_ELEMENT_BYTES, assumptions=notes)


def _config_of(path: Path) -> dict[str, Any]:
    from haaw.loading.json_file import read_json_object

    values = read_json_object(path)
    if values is None:
        raise BadInputError(f"there is no file {path}")
    return values


def _from_config(path: Path, bytes_per_element: float | None) -> Source:
    numbers = numbers_from_config(_config_of(path), bytes_per_element=bytes_per_element, where=path.name)
    return _source(f"{path.parent.name}/{path.name}".lstrip("/"), numbers, 0)


def _from_file(path: Path, name: str, bytes_per_element: float | None) -> Source:
    """A GGUF or llama2.c file, or a folder: what the model's name led to."""
    from haaw.loading.by_kind import reader_of
    from haaw.loading.llama2c import load_llama2c
    from weights_tools.formats.gguf import open_gguf

    if path.is_dir():
        return replace(_from_folder(path, bytes_per_element), name=name)
    if reader_of(path) is load_llama2c:
        return _from_llama2c(path, name, bytes_per_element)
    with open_gguf(path) as file:
        element = bytes_per_element or HAAW_ELEMENT_BYTES
        numbers = numbers_from_gguf(file.metadata, bytes_per_element=element, where=path.name)
        _, elements = _weights_of(file.tensors)
    return _source(name, numbers, elements * HAAW_ELEMENT_BYTES, AS_HAAW_RUNS_IT)


def _from_llama2c(path: Path, name: str, bytes_per_element: float | None) -> Source:
    from haaw.loading.llama2c import config_from_header
    from weights_tools.formats.llama2c import open_llama2c

    with open_llama2c(path) as file:
        config = config_from_header(file.metadata)
        _, elements = _weights_of(file.tensors)
    element = bytes_per_element or HAAW_ELEMENT_BYTES
    shape = CacheShape(config.layers, config.kv_heads, config.head_dim, element)
    numbers = ModelNumbers(shape, config.context_length_tokens, "llama")
    return _source(name, numbers, elements * HAAW_ELEMENT_BYTES, AS_HAAW_RUNS_IT)


def _weights_of(tensors: Mapping[str, Any]) -> tuple[int, int]:
    """(bytes in the file, values) of all tensors."""
    return sum(info.size_bytes for info in tensors.values()), sum(info.elements for info in tensors.values())


def _source(name: str, numbers: ModelNumbers, weights_bytes: int, *notes: str) -> Source:
    return Source(name, numbers.shape, numbers.positions, weights_bytes, (*notes, *numbers.assumptions))

"""A file, a folder or a name becomes a language model: the one place that knows formats, tokenizers and families."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from haaw.arrays import namespace_of_device
from haaw.errors import BadInputError
from haaw.generation.language_model import LanguageModel
from haaw.models import llama
from haaw.models.protocol import Transformer
from haaw.models.weights import WeightLoader

DEFAULT_MODEL = "tiny"
Progress = Callable[[int, int], None]
"""Told of the bytes read so far, and of those to read in all."""


def load(
    model: str | os.PathLike[str] = DEFAULT_MODEL,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    progress: Progress | None = None,
) -> LanguageModel:
    """Loads a model: the name of a pulled model, or the path of a `.gguf` file.

    `device` is "cpu" (NumPy) or "gpu" (CuPy); `dtype` "float32", or "float64" to measure rounding with.
    Errors: `BadInputError` for whatever cannot be loaded, with what to do.
    """
    if dtype not in ("float32", "float64"):
        raise BadInputError(f'dtype is {dtype!r}; it must be "float32" or "float64"')
    xp = namespace_of_device(device)
    path = find(model)
    return load_gguf(path, name=str(model), xp=xp, dtype=dtype, progress=progress)


def find(model: str | os.PathLike[str]) -> Path:
    """The file that a name or path stands for.

    Errors: `BadInputError` when there is none, saying how to get one.
    """
    from weights_tools.catalog import CATALOG
    from weights_tools.pull import find_model

    path = Path(model)
    if path.is_file():
        return path
    if path.is_dir():
        raise BadInputError(f"{path} is a folder; name the .gguf file in it")
    name = str(model)
    if name in CATALOG:
        if (found := find_model(name)) is not None:
            return found
        raise BadInputError(f'the model "{name}" is not here yet; get it with: haaw models pull {name}')
    if name == DEFAULT_MODEL:
        known = ", ".join(CATALOG)
        raise BadInputError(
            f"no model is built in yet; get one with `haaw models pull smollm2-135m` and name it with "
            f"--model (known names: {known}), or name a .gguf file"
        )
    if path.suffix or os.sep in name:
        raise BadInputError(f"there is no file {path}")
    raise BadInputError(f'there is no model or file named "{name:.80}"; `haaw models list` shows the names')


def load_gguf(
    path: Path, *, name: str, xp: Any = np, dtype: str = "float32", progress: Progress | None = None
) -> LanguageModel:
    """Loads a GGUF file: weights, tokenizer and chat template."""
    from haaw.tokenizers import chat_template_from_gguf, tokenizer_from_gguf
    from weights_tools.formats.errors import FormatError
    from weights_tools.formats.gguf import open_gguf

    try:
        with open_gguf(path) as file:
            metadata = file.metadata
            transformer = _transformer_from_gguf(metadata, file, xp, dtype, progress)
            tokenizer = tokenizer_from_gguf(metadata)
            template = chat_template_from_gguf(metadata, tokenizer)
            raw = metadata.get("haaw.prompt_form") == "raw"
    except FormatError as error:
        raise BadInputError(str(error)) from error
    if tokenizer.vocabulary_size > transformer.vocabulary_size:
        raise BadInputError(
            f"{path.name} has {tokenizer.vocabulary_size} tokens but weights for {transformer.vocabulary_size}; "
            "the file is damaged"
        )
    return LanguageModel(
        name=name,
        transformer=transformer,
        tokenizer=tokenizer,
        template=template,
        prompt_form="raw" if template is None or raw else "chat",
    )


def _transformer_from_gguf(
    metadata: Mapping[str, Any], file: Any, xp: Any, dtype: str, progress: Progress | None
) -> Transformer:
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise BadInputError(
            f'the file is of the architecture "{architecture!s:.40}", which HAAW does not run; it runs: llama'
        )
    config = llama.config_from_gguf(metadata, file.tensors)
    total_bytes = sum(4 * info.elements for info in file.tensors.values())
    told = None if progress is None else lambda done_bytes: progress(done_bytes, total_bytes)
    loader = WeightLoader(file, xp=xp, dtype=dtype, progress=told)
    return llama.build(config, loader, llama.GGUF_NAMES, layout="interleaved")

"""`load`: finds a model, sees which kind of file it is, and hands it to that kind's reader."""

import os
from collections.abc import Callable
from pathlib import Path

from haaw import journey
from haaw.arrays import namespace_of_device
from haaw.errors import BadInputError
from haaw.generation.language_model import LanguageModel
from haaw.loading.destination import Destination, Progress
from haaw.loading.finding import DEFAULT_MODEL, find
from haaw.loading.folder import load_folder
from haaw.loading.gguf import load_gguf
from haaw.loading.llama2c import load_llama2c
from haaw.loading.noted import name_to_note

Reader = Callable[[Path, str, Destination], LanguageModel]


def load(
    model: str | os.PathLike[str] = DEFAULT_MODEL,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    progress: Progress | None = None,
) -> LanguageModel:
    """Loads a model: by name (built in, or pulled), or from a path.

    A path is that of a `.gguf` file, of a Hugging Face folder (`config.json`, safetensors, tokenizer), of a
    folder with just one `.gguf` file, or of a llama2.c `.bin` file with its `tok*.bin` beside it. Nothing is
    ever unpickled. `device` is "cpu" (NumPy) or "gpu" (CuPy); `dtype` "float32", or "float64" to measure
    rounding with. Errors: `BadInputError` for whatever cannot be loaded, with what to do.
    """
    from weights_tools.formats.errors import FormatError

    if dtype not in ("float32", "float64"):
        raise BadInputError(f'dtype is {dtype!r}; it must be "float32" or "float64"')
    destination = Destination(namespace_of_device(device), dtype, progress)
    path = find(model)
    try:
        with journey.about(model=name_to_note(model, path)), journey.span("load"):
            return reader_of(path)(path, str(model), destination)
    except FormatError as error:
        raise BadInputError(str(error)) from error


def reader_of(path: Path) -> Reader:
    """The reader for a folder or file. What begins as GGUF is GGUF, whatever it is called."""
    if path.is_dir():
        return load_folder
    if path.suffix == ".safetensors":
        raise BadInputError(
            f"{path.name} holds weights alone; name its folder, which must also hold config.json and a tokenizer"
        )
    if path.suffix == ".bin" and not _begins_as_gguf(path):
        return load_llama2c
    return load_gguf


def _begins_as_gguf(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False  # the reader will say what is wrong

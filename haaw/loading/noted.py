"""The way from a file to a model, noted for `haaw.journey`: names of files, sizes and times, and no paths."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from haaw import journey
from haaw.loading.destination import Destination
from haaw.models.weights import WeightLoader

T = TypeVar("T")


def name_to_note(model: str | os.PathLike[str], path: Path) -> str:
    """The name that the model was asked for by; of a path its last part alone."""
    name = os.fspath(model)
    is_name = name.startswith("hf:") or Path(name).name == name not in ("", ".", "..")
    return name if is_name else path.name or path.resolve().name


@contextmanager
def opened(open_file: Callable[[Path], Any], path: Path, format_name: str) -> Iterator[Any]:
    """An open weight file; notes the mapping and the reading of the header apart, where the file tells."""
    facts: dict[str, Any] = {"file": path.name or path.resolve().name, "format": format_name}
    with journey.span("open weights", **facts) as open_facts:
        start_ns = time.perf_counter_ns()
        file = open_file(path)
        open_facts["tensors"] = len(file.tensors)
        open_facts["bytes"] = sum(info.size_bytes for info in file.tensors.values())
    if (mapped_ns := getattr(file, "mapped_ns", None)) is not None:
        journey.between("map file", start_ns, mapped_ns, **facts)
        journey.between("read header", mapped_ns, time.perf_counter_ns(), **facts)
    with file:
        yield file


def read_weights(build: Callable[[WeightLoader], T], destination: Destination, file: Any) -> T:
    """The transformer that `build` makes of the file's tensors: read, widened to float32 and checked on the way."""
    with journey.span("read weights") as facts:
        loader = destination.loader(file)
        transformer = build(loader)
        facts["tensors"] = len(file.tensors)
        facts["stored_as"] = dict(Counter(info.type_name for info in file.tensors.values()))
        facts["stored_bytes"] = sum(info.size_bytes for info in file.tensors.values())
        facts["dtype"] = destination.dtype
        facts["float32_bytes"] = loader.done_bytes
    return transformer


def built(what: str, build: Callable[[], T]) -> T:
    """What `build` makes, such as a tokenizer."""
    with journey.span(f"build {what}") as facts:
        made = build()
        facts["kind"] = type(made).__name__
        if (tokens := getattr(made, "vocabulary_size", None)) is not None:
            facts["tokens"] = tokens
    return made

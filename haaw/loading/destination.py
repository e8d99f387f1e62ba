"""Where weights go (array library, dtype), and the last checks before a model is handed out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from haaw.errors import BadInputError
from haaw.generation.language_model import LanguageModel
from haaw.models.protocol import TensorSource, Transformer
from haaw.models.weights import WeightLoader

Progress = Callable[[int, int], None]
"""Told of the bytes read so far, and of those to read in all."""


class Sized(Protocol):
    """A row of a file's table of tensors."""

    @property
    def elements(self) -> int:
        """The number of values."""


class Source(TensorSource, Protocol):
    """A weight file whose tensors know their size."""

    @property
    def tensors(self) -> Mapping[str, Sized]:
        """By name."""


@dataclass(frozen=True)
class Destination:
    """The array library and dtype that weights are read into, and who is told of the progress."""

    xp: Any = np
    dtype: str = "float32"
    progress: Progress | None = None

    def loader(self, file: Source) -> WeightLoader:
        """A loader from `file`, which counts the bytes of float32 that come out of it."""
        told = None
        if (progress := self.progress) is not None:
            total_bytes = sum(4 * info.elements for info in file.tensors.values())

            def told(done_bytes: int) -> None:
                progress(done_bytes, total_bytes)

        return WeightLoader(file, xp=self.xp, dtype=self.dtype, progress=told)


def check_vocabulary(transformer: Transformer, tokenizer: Any, file_name: str) -> None:
    """Refuses a tokenizer with ids that the model has no rows for."""
    if tokenizer.vocabulary_size > transformer.vocabulary_size:
        raise BadInputError(
            f"{file_name} has {tokenizer.vocabulary_size} tokens but weights for {transformer.vocabulary_size}; "
            "the file is damaged, or the tokenizer belongs to another model"
        )


def untied_note(config: Any, transformer: Transformer) -> tuple[str, ...]:
    """A remark where the config says that the output table is the embedding, and the file holds another."""
    if config.tied and "output" in transformer.named_weights():
        return (
            "the config ties the output table to the embedding, but the file holds a different one; "
            "the file's is used",
        )
    return ()


def assembled(
    name: str,
    file_name: str,
    transformer: Transformer,
    tokenizer: Any,
    *,
    template: Any = None,
    prompts: str = "chat",
    notes: tuple[str, ...] = (),
) -> LanguageModel:
    """The language model of checked parts; raw prompts are the rule without a template or with `prompts` "raw"."""
    check_vocabulary(transformer, tokenizer, file_name)
    return LanguageModel(
        name=name,
        transformer=transformer,
        tokenizer=tokenizer,
        template=template,
        prompt_form="raw" if template is None or prompts == "raw" else "chat",
        notes=notes,
    )

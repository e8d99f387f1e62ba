"""From a file's tensors to a model's arrays: every one read exactly once, its shape checked, none left over."""

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal

import numpy as np

from haaw.arrays import Array, keep_freed_memory
from haaw.models.protocol import ConfigError, TensorSource

ROWS_CHECKED_BYTES = 1 << 24
BLOCK_BYTES = 1 << 26
ALIGNMENT_BYTES = 64


class WeightLoader:
    """Reads tensors of a file into new arrays of one array library and one dtype.

    `progress(done_bytes)` is told of the float32 bytes read so far.
    """

    def __init__(
        self,
        source: TensorSource,
        *,
        xp: Any = np,
        dtype: str = "float32",
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._source = source
        self._xp = xp
        self._dtype = np.dtype(dtype)
        self._progress = progress
        self._read: set[str] = set()
        self._done_bytes = 0
        self._block = np.empty(0, dtype=np.float32)
        keep_freed_memory()

    @property
    def names(self) -> Collection[str]:
        """The names of the file's tensors."""
        return self._source.tensors.keys()

    @property
    def done_bytes(self) -> int:
        """The bytes of float32 read so far."""
        return self._done_bytes

    def has(self, name: str) -> bool:
        """Whether the file has a tensor of that name."""
        return name in self._source.tensors

    def array(
        self, name: str, shape: tuple[int, ...], *, stored: Literal["out-in", "in-out"] = "out-in"
    ) -> Array:
        """One tensor, which must have exactly that shape; a matrix stored "in-out" is transposed."""
        if stored == "out-in":
            return self._placed(self.host(name, shape))
        self._check(name, shape[::-1])
        turned = np.empty(shape[::-1], dtype=np.float32)
        self._fill(name, turned)
        host = self._empty(shape)
        host[...] = turned.T
        return self._placed(host)

    def host(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """One tensor as a float32 array on the host, whatever the loader's own library and dtype."""
        self._check(name, shape)
        host = self._empty(shape)
        self._fill(name, host)
        return host

    def stacked(
        self,
        names: Iterable[str],
        rows: Iterable[int],
        columns: int,
        arrange: Callable[[int, np.ndarray], None] | None = None,
    ) -> Array:
        """Several matrices of the same width, below one another in one array.

        `arrange(i, part)` may reorder the rows of the i-th part in place.
        """
        names, counts = list(names), list(rows)
        for name, count in zip(names, counts, strict=True):
            self._check(name, (count, columns))
        host = self._empty((sum(counts), columns))
        start = 0
        for index, (name, count) in enumerate(zip(names, counts, strict=True)):
            part = host[start : start + count]
            self._fill(name, part)
            if arrange is not None:
                arrange(index, part)
            start += count
        return self._placed(host)

    def ignore(self, names: Iterable[str]) -> None:
        """Says that these tensors, where present, are known not to be needed."""
        self._read.update(name for name in names if self.has(name))

    def finish(self) -> None:
        """Checks that no tensor of the file was left out.

        Errors: `ConfigError` naming those that were.
        """
        left = sorted(self._source.tensors.keys() - self._read)
        if left:
            raise ConfigError(
                f"the file has {len(left)} tensors that this model family has no place for, such as "
                f'"{left[0]}"; it is probably of another architecture'
            )

    def _empty(self, shape: tuple[int, ...]) -> np.ndarray:
        """A new float32 array: a window on a large block, which the system backs with large pages.

        With pages of 4 KB a decode step of SmolLM2 spends about 5 % longer on its matrix products.
        """
        size = math.prod(shape)
        padded = -(-size * 4 // ALIGNMENT_BYTES) * ALIGNMENT_BYTES // 4
        if padded > BLOCK_BYTES // 4:
            return np.empty(shape, dtype=np.float32)
        if padded > self._block.size:
            self._block = np.empty(BLOCK_BYTES // 4, dtype=np.float32)
        window, self._block = self._block[:size], self._block[padded:]
        return window.reshape(shape)

    def _check(self, name: str, expected: tuple[int, ...]) -> None:
        """Refuses a tensor that is not there in that shape; before memory of that shape is asked for."""
        if not self.has(name):
            raise ConfigError(
                f'the tensor "{name}" is missing; the file is incomplete or of another architecture'
            )
        shape = tuple(self._source.tensors[name].shape)
        if shape != expected:
            raise ConfigError(f'the tensor "{name}" has the shape {shape}, the config asks for {expected}')

    def _fill(self, name: str, out: np.ndarray) -> None:
        self._source.read_into(name, out)
        self._refuse_nan(name, out)
        self._read.add(name)
        self._done_bytes += out.nbytes
        if self._progress is not None:
            self._progress(self._done_bytes)

    def _refuse_nan(self, name: str, out: np.ndarray) -> None:
        flat = out.reshape(-1)
        step = ROWS_CHECKED_BYTES // out.itemsize
        for start in range(0, flat.size, step):
            part = flat[start : start + step]
            # A sum is finite unless a term is not (or the terms are absurdly large): cheap, then exact.
            with np.errstate(all="ignore"):
                total = np.add.reduce(part)
            if not np.isfinite(total) and not np.isfinite(part).all():
                raise ConfigError(
                    f'the tensor "{name}" holds NaN or infinite values; the file is damaged, fetch it again'
                )

    def _placed(self, host: np.ndarray) -> Array:
        return self._xp.asarray(host.astype(self._dtype, copy=False))


def unpermute_rope_rows(part: np.ndarray, heads: int) -> None:
    """Brings the rows of a query or key projection from the interleaved RoPE layout to half-split, in place.

    GGUF's `llama` stores channel pairs next to each other: row 2·i + j of a head holds channel i + j·C/2.
    """
    pairs = part.reshape(heads, part.shape[0] // heads // 2, 2, part.shape[1])
    part[:] = pairs.swapaxes(1, 2).reshape(part.shape)

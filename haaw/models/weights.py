"""From a file's tensors to a model's arrays: every one read exactly once, its shape checked, none left over."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from haaw.arrays import Array
from haaw.models.protocol import ConfigError, TensorSource

ROWS_CHECKED_BYTES = 1 << 24


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

    def has(self, name: str) -> bool:
        """Whether the file has a tensor of that name."""
        return name in self._source.tensors

    def array(self, name: str, shape: tuple[int, ...]) -> Array:
        """One tensor, which must have exactly that shape."""
        return self._placed(self.host(name, shape))

    def host(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """One tensor as a float32 array on the host, whatever the loader's own library and dtype."""
        host = np.empty(shape, dtype=np.float32)
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
        counts = list(rows)
        host = np.empty((sum(counts), columns), dtype=np.float32)
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

    def _fill(self, name: str, out: np.ndarray) -> None:
        if not self.has(name):
            raise ConfigError(f'the tensor "{name}" is missing; the file is incomplete or of another architecture')
        shape = tuple(self._source.tensors[name].shape)
        if shape != out.shape:
            raise ConfigError(f'the tensor "{name}" has the shape {shape}, the config asks for {out.shape}')
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
            if not np.isfinite(np.add.reduce(part)) and not np.isfinite(part).all():
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

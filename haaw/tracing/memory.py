"""The memory of a buffer in a replay, and windows on it: what the trace says of them is checked before it is used."""

import numpy as np

from haaw.arrays import Array, owner
from haaw.tracing.container import TraceDamagedError
from haaw.tracing.event import Window
from haaw.tracing.segments import Layout, dtype_of

MOST_AROUND_A_VALUE, MOST_BYTES_AROUND = 1_000, 1 << 20
"""A value that was kept is laid out again as it was: at most so many times its bytes, and so many more."""


class Memory:
    """The memory of a buffer, and windows on it."""

    __slots__ = ("flat", "whole")

    def __init__(self, array: Array) -> None:
        self.whole = owner(array)
        flat = self.whole.ravel(order="K")  # a window on all of it; results lie densely in memory
        self.flat = flat if flat.base is not None or flat is self.whole else self.whole

    def window(self, offset: int, layout: Layout) -> Array:
        """A window from an offset in elements on. Errors: `TraceDamagedError` where it lies outside the memory."""
        whole = self.whole
        if offset == 0 and whole.shape == layout.shape and whole.strides == layout.strides:
            return whole
        try:
            dtype = dtype_of(layout.dtype)
            return np.ndarray(layout.shape, dtype, self.flat, offset * dtype.itemsize, layout.strides)
        except (ValueError, TypeError, OverflowError) as error:
            raise TraceDamagedError(
                f"a window {layout.shape!s:.60} of {layout.dtype:.20} at {offset} does not lie within its buffer; "
                "the trace is damaged, or of another model"
            ) from error


class Whole(Memory):
    """A weight, which is a window on an allocation that other weights share."""

    __slots__ = ()

    def __init__(self, array: Array) -> None:
        self.whole = array
        self.flat = array.reshape(-1)


def laid_out(value: np.ndarray, window: Window) -> np.ndarray:
    """A kept value in memory of its own that is laid out as the recorded window was (offset and strides)."""
    layout = window.layout
    dtype = np.dtype(layout.dtype)
    if layout.shape != value.shape:
        raise TraceDamagedError(
            f"a kept value has the shape {value.shape}, and its table says {layout.shape}"
        )
    last = sum((length - 1) * stride for length, stride in zip(layout.shape, layout.strides, strict=True))
    if not value.size or min((*layout.strides, 0)) < 0:
        return value.copy()
    elements = window.offset + last // dtype.itemsize + 1
    if elements * dtype.itemsize > MOST_AROUND_A_VALUE * value.nbytes + MOST_BYTES_AROUND:
        raise TraceDamagedError(
            f"a kept value of {value.nbytes} bytes would begin at byte {window.offset * dtype.itemsize} of its "
            "buffer; the trace is damaged"
        )
    memory = np.zeros(elements, dtype=dtype)
    laid: np.ndarray = np.ndarray(layout.shape, dtype, memory, window.offset * dtype.itemsize, layout.strides)
    laid[...] = value
    return laid

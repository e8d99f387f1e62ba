"""Which token position each row of a window on a cache holds.

Row s holds position s in every cache that forgets nothing. In a ring it does not; there the writes are
carried out once more with positions in place of numbers.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from haaw.errors import BadInputError
from haaw.tracing.event import Event, Link, Window
from haaw.tracing.memory import Memory
from haaw.tracing.running import operation

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace

FORGETTING = ("sliding",)


def row_positions(trace: "Trace", window: Window) -> list[int]:
    """The position of each row of a window (K, S, C) on keys or values."""
    if not _forgets(trace):
        return list(range(window.layout.shape[1]))
    labels_KSC = _Labels(trace).read(window)
    found: list[int] = labels_KSC[0, :, 0].tolist()
    return found


def _forgets(trace: "Trace") -> bool:
    for event in trace.facts("settings"):
        asked = (event.facts or {}).get("asked") or {}
        if asked.get("cache") in FORGETTING:
            return True
    return False


class _Labels:
    """Buffers whose elements are the positions of the tokens that the rows were made of."""

    def __init__(self, trace: "Trace") -> None:
        self.trace = trace
        self._known: dict[int, tuple[int, np.ndarray]] = {}

    def read(self, window: Window) -> np.ndarray:
        """A window on a labelled buffer, at its version."""
        history = self.trace.reading.rerun.history
        maker = history.maker(window.buffer)
        if maker is None:
            raise BadInputError(f"the trace does not say how the cache's buffer {window.buffer} came about")
        version, labels = self._known.get(window.buffer, (0, None))
        if labels is None or version > window.version:
            shape = self.trace.event(maker).outputs[0].window.layout.shape
            version, labels = 0, np.full(shape, -1, dtype=np.int64)
        for number in history.writes(window.buffer, version, window.version):
            event = self.trace.event(number)
            if event.kind == "input":  # declared anew: what is in it now, nobody recorded
                labels[...] = -1
                continue
            arguments: dict[str, Any] = dict(event.args)
            for link in event.inputs:
                own = link.window.buffer == window.buffer
                arguments[link.parameter] = (
                    self._window(labels, link.window) if own else self._rows(event, link)
                )
            operation(event.name).plain(**arguments)
        self._known[window.buffer] = window.version, labels
        return self._window(labels, window)

    @staticmethod
    def _window(labels: np.ndarray, window: Window) -> np.ndarray:
        """The same window on labels, whose elements have another width."""
        layout = window.layout
        width = labels.itemsize
        scaled = tuple(stride // np.dtype(layout.dtype).itemsize * width for stride in layout.strides)
        found: np.ndarray = Memory(labels).window(
            window.offset, layout._replace(dtype=labels.dtype.str, strides=scaled)
        )
        return found

    def _rows(self, event: Event, link: Link) -> np.ndarray:
        if self.trace.reading.rerun.history.maker(link.window.buffer) is not None:
            return self.read(link.window)
        return self._of_step(event, link.window)

    def _of_step(self, event: Event, window: Window) -> np.ndarray:
        """Rows (T, K, C) that the step computed: they stand for its positions, from the window's first token on."""
        from haaw.tracing.steps import step_of

        step = step_of(self.trace, event.number)
        for number in range(event.number - 1, step.first - 1, -1):
            declared = self.trace.event(number)
            if declared.kind == "input" and declared.name == "positions":
                positions_T = np.asarray(self.trace.reading.value(declared, 0))
                layout = window.layout
                first = window.offset * np.dtype(layout.dtype).itemsize // max(layout.strides[0], 1)
                own_T = positions_T[first : first + layout.shape[0]]
                return np.broadcast_to(own_T[:, None, None], layout.shape)
        raise BadInputError(f"{step.name} does not say at which positions its tokens stand")

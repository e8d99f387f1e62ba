"""`trace.tree`: what ran, by stage, step, layer, head and part."""

from collections import deque
from collections.abc import Iterator
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from haaw.tracing.display import counted, duration, printable
from haaw.tracing.event_columns import EventColumns
from haaw.tracing.schema import OPERATION

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace

LEVELS = ("request", "stage", "step", "sequence", "layer", "head", "part", "name")
MOST_SHOWN = 20
MOST_IN_HTML = 2_000


class Node:
    """A place: how many events happened in it, how many of them operations, and how long these took in all.

    What it consists of is worked out when it is asked for: a long answer has a place for nearly every event.
    """

    def __init__(self, label: str, places: "_Places", rows: np.ndarray, levels: np.ndarray) -> None:
        self.label = label
        self._places, self._rows, self._levels = places, rows, levels
        self.events = len(rows)
        self.operations = int(places.is_operation[rows].sum())
        self.took_ns = float(places.took_ns[rows].sum())

    @cached_property
    def children(self) -> dict[str, "Node"]:
        """The places in it by their labels, in the order in which they were first met."""
        return {} if self._is_leaf else self._places.split(self._rows, self._levels)

    @property
    def _is_leaf(self) -> bool:
        return bool((self._levels == len(LEVELS)).all())

    def __getitem__(self, label: str) -> "Node":
        if label not in self.children:
            raise KeyError(
                f"{self.label} has no {label!r}; it has {', '.join(list(self.children)[:MOST_SHOWN])}"
            )
        return self.children[label]

    def __iter__(self) -> Iterator["Node"]:
        return iter(self.children.values())

    def __len__(self) -> int:
        return len(self.children)

    def __bool__(self) -> bool:
        return True

    def lines(self, depth: int = 2, indent: str = "") -> Iterator[str]:
        """The place and those in it, `depth` levels deep; of many side by side the first and the last."""
        yield f"{indent}{printable(self.label)}  {self.summary}"
        if depth <= 0:
            return
        shown, hidden = self._shown()
        for number, child in enumerate(shown):
            if hidden and number == len(shown) - 1:
                yield f"{indent}  … {hidden} more"
            yield from child.lines(depth - 1, indent + "  ")

    @property
    def summary(self) -> str:
        """Counts and time in words; facts alone took no time that was measured."""
        counts = counted(self.events, "event")
        if not self.operations:
            return counts
        return f"{counts}, {counted(self.operations, 'operation')}, {duration(self.took_ns)}"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    __repr__ = __str__

    def to_dict(self, depth: int = 99) -> dict[str, Any]:
        """For JSON."""
        own = {
            "label": self.label,
            "events": self.events,
            "operations": self.operations,
            "took_ns": round(self.took_ns),
        }
        return own | (
            {"children": [child.to_dict(depth - 1) for child in self]} if self.children and depth else {}
        )

    def _repr_html_(self) -> str:
        return self.html(open_levels=1)

    def html(self, open_levels: int = 0) -> str:
        """Nested `<details>`: of many side by side the first and the last, and as many levels as a page can bear."""
        return self._html(open_levels, self._unfolded())

    def _shown(self) -> tuple[list["Node"], int]:
        """Of many the first and the last, and how many are left out before the last."""
        children = list(self)
        hidden = max(len(children) - MOST_SHOWN, 0)
        return (children[: MOST_SHOWN - 1] + children[-1:], hidden) if hidden else (children, 0)

    def _unfolded(self) -> set[int]:
        """The places that are shown with what is in them, from the top down."""
        unfolded: set[int] = set()
        waiting, count = deque([self]), 1
        while waiting and count < MOST_IN_HTML:
            node = waiting.popleft()
            unfolded.add(id(node))
            waiting += node._shown()[0]
            count += len(node._shown()[0])
        return unfolded

    def _html(self, open_levels: int, unfolded: set[int]) -> str:
        line = f"{escape(self.label)} <small>{escape(self.summary)}</small>"
        if self._is_leaf or id(self) not in unfolded:
            return f'<div style="margin-left:1.2em">{line}{"" if self._is_leaf else " …"}</div>'
        shown, hidden = self._shown()
        pieces = [child._html(open_levels - 1, unfolded) for child in shown]
        if hidden:
            pieces.insert(-1, f'<div style="margin-left:1.2em">… {hidden} more</div>')
        state = " open" if open_levels > 0 else ""
        return f'<details{state} style="margin-left:1em"><summary>{line}</summary>{"".join(pieces)}</details>'


class _Places:
    """The levels of every event as numbers, -1 for what does not apply."""

    def __init__(self, columns: EventColumns, several_requests: bool) -> None:
        self.is_operation = columns["kind"] == OPERATION
        self.took_ns = columns["took_ns"].astype(np.float64)
        self._texts = columns.texts
        self._levels = np.stack([columns[name].astype(np.int32) for name in LEVELS])
        self._levels[LEVELS.index("part")][columns.says("part", "")] = -1
        if not several_requests:
            self._levels[LEVELS.index("request")] = -1

    def split(self, rows: np.ndarray, levels: np.ndarray) -> dict[str, Node]:
        """Events by the next level that applies to each, from its own of `levels` on."""
        inner = levels < len(LEVELS)
        rows, levels = rows[inner], levels[inner]
        open_ = (self._levels[:, rows] >= 0) & (np.arange(len(LEVELS))[:, None] >= levels)
        level = open_.argmax(axis=0)
        keys = level.astype(np.int64) << 32 | self._levels[level, rows]
        found, first, which = np.unique(keys, return_index=True, return_inverse=True)
        groups: dict[str, list[int]] = {}
        for number in np.argsort(first).tolist():
            groups.setdefault(self._label(rows[first[number]], int(found[number] >> 32)), []).append(number)
        members = np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which))[:-1])
        made = {}
        for label, numbers in groups.items():
            own = members[numbers[0]]
            if len(numbers) > 1:  # a part and an operation in the same place that have one name
                own = np.sort(np.concatenate([members[number] for number in numbers]))
            made[label] = Node(label, self, rows[own], level[own] + 1)
        return made

    def _label(self, row: int, level: int) -> str:
        name, number = LEVELS[level], int(self._levels[level, row])
        if name in self._texts:
            return self._texts[name].values[number] or "elsewhere"
        if name == "step":
            return f"{self._label(row, LEVELS.index('stage'))} {number}"
        return f"{name} {number}"


def tree(trace: "Trace") -> Node:
    """The whole trace as a tree; places in the order in which they were first met."""
    places = _Places(trace.reading.columns, trace.several_requests)
    rows = np.arange(len(trace))
    return Node(trace.path.name, places, rows, np.zeros(len(rows), dtype=np.intp))

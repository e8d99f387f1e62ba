"""`trace.tree`: what ran, by stage, step, layer, head and part."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from haaw.tracing.display import counted, duration, printable

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace

LEVELS = ("request", "stage", "step", "sequence", "layer", "head", "part", "name")
MOST_SHOWN = 20


@dataclass
class Node:
    """A place: how many events happened in it, how many of them operations, and how long these took in all."""

    label: str
    events: int = 0
    operations: int = 0
    took_ns: float = 0.0
    children: dict[str, "Node"] = field(default_factory=dict)

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
        children = list(self)
        for number, child in enumerate(children):
            if len(children) > MOST_SHOWN and number == MOST_SHOWN - 1:
                yield f"{indent}  … {len(children) - MOST_SHOWN} more"
            if number < MOST_SHOWN - 1 or number == len(children) - 1:
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
        """Nested `<details>`."""
        line = f"{escape(self.label)} <small>{escape(self.summary)}</small>"
        if not self.children:
            return f'<div style="margin-left:1.2em">{line}</div>'
        inner = "".join(child.html(open_levels - 1) for child in self)
        state = " open" if open_levels > 0 else ""
        return f'<details{state} style="margin-left:1em"><summary>{line}</summary>{inner}</details>'


def tree(trace: "Trace") -> Node:
    """The whole trace as a tree; places in the order in which they were first met."""
    table = trace.events
    several = trace.several_requests
    root = Node(trace.path.name)
    columns = [table[name].tolist() for name in ("kind", "took_ns", "request", "stage", *LEVELS[2:])]
    nodes: dict[Any, list[Node]] = {}
    for kind, took_ns, *place in zip(*columns, strict=True):
        key = tuple(place)
        if key not in nodes:
            nodes[key] = _branch(root, place, several)
        for node in nodes[key]:
            node.events += 1
            node.operations += kind == "operation"
            node.took_ns += took_ns
    return root


def _branch(root: Node, place: list[Any], several: bool) -> list[Node]:
    request, stage, step, sequence, layer, head, part, name = place
    numbered = (("step", step), ("sequence", sequence), ("layer", layer), ("head", head))
    labels = [f"request {request}"] if several and request >= 0 else []
    labels.append(stage or "elsewhere")
    labels += [f"{stage if what == 'step' else what} {number}" for what, number in numbered if number >= 0]
    labels += [part] if part else []
    branch = [root]
    for label in [*labels, name]:
        branch.append(branch[-1].children.setdefault(label, Node(label)))
    return branch

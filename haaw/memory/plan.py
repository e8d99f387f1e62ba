"""A memory plan: a shape with a context, sequences, weights and a memory, and every figure that follows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from haaw.errors import BadInputError
from haaw.memory.arithmetic import (
    KINDS,
    LARGEST_CONTEXT,
    LARGEST_SEQUENCES,
    Figure,
    KindMemory,
    bounded,
    bytes_per_token,
    check_context,
    kind_memory,
    kinds_of,
    needed_bytes,
)
from haaw.memory.shape import CacheShape
from haaw.memory.sizes import LARGEST_BYTES

DEFAULT_CONTEXT = 8192


@dataclass(frozen=True)
class Plan:
    """What is asked: `sequences` of `context` positions each, in `kind`, beside weights within a memory.

    `kind` is one of `KINDS`, or "needed": what must be held, without what a kind allocates beyond it.
    `capacity` is what a static cache reserves for each sequence (the context unless given). `assumptions` are
    sentences to be shown beside every result. Errors: `BadInputError` for numbers that make no plan.
    """

    shape: CacheShape
    context: int = DEFAULT_CONTEXT
    sequences: int = 1
    kind: str = "needed"
    capacity: int | None = None
    weights_bytes: int = 0
    memory_bytes: int | None = None
    name: str = ""
    assumptions: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        check_context(self.context)
        if self.context < 1:
            raise BadInputError("context is 0; at least 1 position is needed")
        count = self.sequences
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= LARGEST_SEQUENCES:
            raise BadInputError(
                f"sequences is {count!r:.40}; a whole number from 1 to {LARGEST_SEQUENCES:,} is needed"
            )
        if self.kind != "needed" and self.kind not in KINDS:
            raise BadInputError(f"cache is {self.kind!r:.40}; the kinds are needed, {', '.join(KINDS)}")
        if self.kind != "needed" and self.kind not in kinds_of(self.shape):
            raise BadInputError(
                f"cache is {self.kind}, which is not defined for latents; choose another kind"
            )
        if self.capacity is not None and self.capacity < self.context:
            raise BadInputError(
                f"context is {self.context:,}, beyond the capacity of {self.capacity:,} positions"
            )
        for name in ("weights_bytes", "memory_bytes"):
            size = getattr(self, name)
            if size is not None and not 0 <= size <= LARGEST_BYTES:
                raise BadInputError(f"{name} is {size!r:.40}; it must lie between 0 and 256 TiB")

    @property
    def per_token(self) -> Figure:
        """Bytes that a token adds."""
        return bytes_per_token(self.shape)

    @property
    def per_sequence(self) -> Figure:
        """Bytes that one sequence needs."""
        return needed_bytes(self.shape, self.context)

    @property
    def cache_bytes(self) -> Figure:
        """Bytes of all sequences in the plan's kind."""
        one = self.allocated_bytes(self.context)
        return Figure(
            "all sequences take",
            bounded(Fraction(one * self.sequences)),
            "bytes",
            "sequences · bytes of a sequence in the kind of cache",
            f"{self.sequences:,} · {one:,}",
        )

    @property
    def total_bytes(self) -> Figure:
        """The cache with the weights beside it."""
        cache = self.cache_bytes.value
        return Figure(
            "cache and weights",
            bounded(cache + self.weights_bytes),
            "bytes",
            "bytes of all sequences + weights",
            f"{cache:,} + {self.weights_bytes:,}",
        )

    def kinds(self) -> tuple[KindMemory, ...]:
        """One sequence in every kind of cache."""
        return tuple(self.in_kind(kind, self.context) for kind in kinds_of(self.shape))

    def in_kind(self, kind: str, context: int) -> KindMemory:
        """One sequence of `context` positions in a kind; a static cache keeps to the plan's capacity."""
        capacity = None if self.capacity is None or context > self.capacity else self.capacity
        return kind_memory(self.shape, kind, context, capacity=capacity)

    def allocated_bytes(self, context: int, *, reserve: bool = True) -> int:
        """Bytes allocated for one sequence in the plan's kind, metadata included, without what lies outside memory.

        `reserve` false: a static cache reserves no more than `context`.
        """
        if self.kind == "needed":
            return int(needed_bytes(self.shape, context).value)
        part = self.in_kind(self.kind, context) if reserve else kind_memory(self.shape, self.kind, context)
        return part.resident_bytes

    def largest_context(self) -> Figure | None:
        """The most positions that each of the sequences can have in the memory; None without a memory.

        The value is `LARGEST_CONTEXT` where windows bound the cache, so that any context fits.
        """
        if self.memory_bytes is None:
            return None
        room = self.memory_bytes - self.weights_bytes
        value = _last(lambda context: self._fits(context, room), LARGEST_CONTEXT)
        return Figure(
            "largest context",
            value,
            "positions",
            "the most positions with sequences · bytes of a sequence ≤ memory - weights",
            f"{self.sequences:,} · bytes({value:,}) ≤ {self.memory_bytes:,} - {self.weights_bytes:,}",
        )

    def _fits(self, context: int, room: int) -> bool:
        try:
            return self.sequences * self.allocated_bytes(context, reserve=False) <= room
        except BadInputError:  # above 256 TiB, the most that a memory can have
            return False

    def most_sequences(self) -> Figure | None:
        """The most sequences of the plan's context that fit into the memory; None without a memory."""
        if self.memory_bytes is None:
            return None
        one = self.allocated_bytes(self.context)
        return Figure(
            "most sequences",
            max(0, self.memory_bytes - self.weights_bytes) // one,
            "sequences",
            "⌊(memory - weights) / bytes of a sequence⌋",
            f"⌊({self.memory_bytes:,} - {self.weights_bytes:,}) / {one:,}⌋",
        )

    def figures(self) -> tuple[Figure, ...]:
        """Every figure in the order of the table."""
        figures = [self.per_token, self.per_sequence, self.cache_bytes, self.total_bytes]
        figures += [each for each in (self.largest_context(), self.most_sequences()) if each is not None]
        return tuple(figures)

    def to_dict(self) -> dict[str, Any]:
        """The plan and its figures as plain values; fractions of a byte become floats."""
        shape = {name: getattr(self.shape, name) for name in self.shape.__dataclass_fields__}
        shape["bytes_per_element"] = _number(Fraction(self.shape.bytes_per_element))
        return {
            "name": self.name,
            "shape": shape,
            "context": self.context,
            "sequences": self.sequences,
            "cache": self.kind,
            "capacity": self.capacity,
            "weights_bytes": self.weights_bytes,
            "memory_bytes": self.memory_bytes,
            "assumptions": list(self.assumptions),
            "figures": [{**vars(each), "value": _number(each.value)} for each in self.figures()],
            "kinds": [
                {**vars(each), "waste_bytes": each.waste_bytes, "utilisation": each.utilisation}
                for each in self.kinds()
            ],
        }


def _number(value: int | Fraction) -> int | float:
    return int(value) if Fraction(value).denominator == 1 else float(value)


def _last(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` that fits, where all smaller ones do; 0 when none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low

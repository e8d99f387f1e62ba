"""How many bytes a KV cache takes: what must be held, and what each kind of cache allocates for it.

Every result carries its formula and the same formula with the numbers put in. All arithmetic is exact; only a
total that ends in a fraction of a byte is rounded up.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from haaw.errors import BadInputError
from haaw.memory.shape import CacheShape
from haaw.memory.sizes import LARGEST_BYTES, number_text

KINDS = ("dynamic", "static", "sliding", "int8", "int4", "paged", "offloaded")
"""The kinds of cache whose allocation is calculated; `int8` and `int4` are the quantised kind."""
FIRST_CAPACITY = 64
GROUP_POSITIONS = 32
FIRST_GROUPS = 4
TABLE_ENTRY_BYTES = 8
SLIDING_WINDOW = 256
"""Kept of a model without a window, where no other number is given (haaw.caches.sliding)."""
LARGEST_CONTEXT = 2**31 - 1
LARGEST_SEQUENCES = 2**20


@dataclass(frozen=True)
class Figure:
    """A result: its name, value and unit, the formula, and the formula with the numbers put in."""

    name: str
    value: int | Fraction
    unit: str
    formula: str
    numbers: str

    @property
    def text(self) -> str:
        """The numbers and what they come to."""
        return f"{self.numbers} = {number_text(self.value)}"


@dataclass(frozen=True)
class KindMemory:
    """One sequence in one kind of cache, as its `memory()` reports it.

    Metadata are scales, which lie within the allocated bytes, or a block table, which lies beside them. Of the
    allocated bytes, `outside_bytes` are on the disk, or on the host beside a device.
    """

    kind: str
    useful_bytes: int
    allocated_bytes: int
    metadata_bytes: int
    formula: str
    numbers: str
    note: str = ""
    outside_bytes: int = 0

    @property
    def waste_bytes(self) -> int:
        """Bytes that hold neither keys or values nor what is needed to read them."""
        return self.total_bytes - self.useful_bytes - self.metadata_bytes

    @property
    def total_bytes(self) -> int:
        """Allocated bytes, and a block table beside them."""
        return self.allocated_bytes + (self.metadata_bytes if self.kind == "paged" else 0)

    @property
    def resident_bytes(self) -> int:
        """Of all bytes those that the memory beside the weights must hold."""
        return self.total_bytes - self.outside_bytes

    @property
    def utilisation(self) -> float:
        """Useful of allocated."""
        return self.useful_bytes / self.allocated_bytes if self.allocated_bytes else 1.0


def bytes_per_token(shape: CacheShape) -> Figure:
    """What one more token adds in all layers, as long as no window is full.

    2 · layers · KV heads · head width · bytes of an element: Pope et al. 2022, arXiv:2211.05102, section 2;
    with a latent, layers · (R + rope width) · bytes: DeepSeek-V2, arXiv:2405.04434, section 2.1.
    """
    layers = shape.caching_layers
    element = number_text(Fraction(shape.bytes_per_element))
    if shape.latent_width:
        formula = "layers · (latent_width + rope_width) · bytes_per_element"
        numbers = f"{layers} · ({shape.latent_width} + {shape.rope_width}) · {element}"
    else:
        formula = "2 · layers · kv_heads · head_dim · bytes_per_element"
        numbers = f"2 · {layers} · {shape.kv_heads} · {shape.head_dim} · {element}"
    value = layers * shape.bytes_per_layer_position
    return Figure("a token", _plain(value), "bytes", formula, numbers)


def needed_bytes(shape: CacheShape, context: int) -> Figure:
    """What a sequence of `context` positions needs: all of them in full layers, the last `window` in the others."""
    check_context(context)
    layer = shape.bytes_per_layer_position
    positions = shape.full_layers * context
    if not shape.windowed_layers:
        formula, numbers = "context · bytes per token", f"{context:,} · {bytes_per_token(shape).numbers}"
    else:
        assert shape.window is not None
        positions += shape.windowed_layers * min(context, shape.window)
        formula = (
            "(full_layers · context + windowed_layers · min(context, window)) · bytes per layer and position"
        )
        numbers = (
            f"({shape.full_layers} · {context:,} + {shape.windowed_layers} · min({context:,}, {shape.window:,}))"
            f" · {number_text(layer)}"
        )
    return Figure("a sequence needs", bounded(positions * layer), "bytes", formula, numbers)


def kind_memory(shape: CacheShape, kind: str, context: int, *, capacity: int | None = None) -> KindMemory:
    """What a cache of a kind holds and allocates for one sequence of `context` positions.

    `capacity` is what a static cache reserves: `context` unless given. Errors: `BadInputError` for an unknown
    kind, a context beyond the capacity, or a total of more than 256 TiB.
    """
    check_context(context)
    match kind:
        case "dynamic":
            return _dynamic(shape, context)
        case "static":
            return _static(shape, context, context if capacity is None else capacity)
        case "sliding":
            return _sliding(shape, context, capacity)
        case "int8" | "int4":
            return _quantised(shape, context, 8 if kind == "int8" else 4)
        case "paged":
            return _paged(shape, context)
        case "offloaded":
            return _offloaded(shape, context)
    raise BadInputError(f"cache is {kind!r:.40}; the kinds are {', '.join(KINDS)}")


def kinds_of(shape: CacheShape) -> tuple[str, ...]:
    """The kinds that can hold such a shape."""
    return tuple(kind for kind in KINDS if not (shape.latent_width and kind.startswith("int")))


def doubled(context: int, first: int = FIRST_CAPACITY) -> int:
    """The capacity that doubling reaches for `context` positions; 0 for none."""
    return 0 if context == 0 else first << max(0, math.ceil(context / first) - 1).bit_length()


def check_context(context: int) -> None:
    """Refuses what is no number of positions."""
    if isinstance(context, bool) or not isinstance(context, int) or not 0 <= context <= LARGEST_CONTEXT:
        raise BadInputError(
            f"context is {context!r:.40}; a whole number from 0 to {LARGEST_CONTEXT:,} is needed"
        )


def bounded(value: int | Fraction) -> int:
    """A total in whole bytes, rounded up; refused above 256 TiB."""
    if value > LARGEST_BYTES:
        raise BadInputError(
            f"these numbers come to {float(value):.3g} bytes, above 256 TiB; make one of them smaller"
        )
    return math.ceil(value)


def _plain(value: Fraction) -> int | Fraction:
    return int(value) if value.denominator == 1 else value


def _token(shape: CacheShape) -> Fraction:
    return shape.caching_layers * shape.bytes_per_layer_position


def _keeps_all(shape: CacheShape) -> str:
    return "keeps every position in every layer; the window saves nothing" if shape.windowed_layers else ""


def _dynamic(shape: CacheShape, context: int) -> KindMemory:
    capacity, token = doubled(context), _token(shape)
    return KindMemory(
        "dynamic",
        bounded(context * token),
        bounded(capacity * token),
        0,
        f"capacity · bytes per token, capacity doubled from {FIRST_CAPACITY} until it holds the context",
        f"{capacity:,} · {number_text(token)}",
        _keeps_all(shape),
    )


def _static(shape: CacheShape, context: int, capacity: int) -> KindMemory:
    check_context(capacity)
    if context > capacity:
        raise BadInputError(
            f"context is {context:,}, but the static capacity is {capacity:,}; reserve as much"
        )
    token = _token(shape)
    return KindMemory(
        "static",
        bounded(context * token),
        bounded(capacity * token),
        0,
        "capacity reserved at the start · bytes per token",
        f"{capacity:,} · {number_text(token)}",
        _keeps_all(shape),
    )


def _sliding(shape: CacheShape, context: int, capacity: int | None) -> KindMemory:
    """Rings of window + sinks rows and a spare one, made at the start; the other layers grow by doubling."""
    layer = shape.bytes_per_layer_position
    windowed, window = shape.windowed_layers, shape.window
    full, note = shape.full_layers, ""
    if window is None:
        full, windowed, window = 0, shape.caching_layers, SLIDING_WINDOW
        note = f"an approximation: the model has no window, and only the last {window} positions are kept"
    if capacity is not None:
        window = max(1, min(window, capacity - shape.sinks))
    rows = window + shape.sinks
    held = full * context + windowed * min(context, rows)
    grown = doubled(context) if full else 0
    return KindMemory(
        "sliding",
        bounded(held * layer),
        bounded((full * grown + windowed * (rows + 1)) * layer),
        0,
        "(full_layers · doubled capacity + windowed_layers · (window + sinks + 1)) · bytes per layer and position",
        f"({full} · {grown:,} + {windowed} · ({window:,} + {shape.sinks:,} + 1)) · {number_text(layer)}",
        note,
    )


def _quantised(shape: CacheShape, context: int, bits: int) -> KindMemory:
    """Groups of 32 positions in codes with a lowest value and a step a tile, 32 to 63 positions as floats.

    A key tile is a channel of a group, a value tile up to 32 channels of a position (haaw.caches.quantised).
    """
    if shape.latent_width:
        raise BadInputError(f"int{bits}: no cache of few bits is defined for latents; choose another kind")
    group, heads, channels = GROUP_POSITIONS, shape.kv_heads, shape.head_dim
    element, layers = Fraction(shape.bytes_per_element), shape.caching_layers
    groups = max(0, context - group) // group
    room = doubled(groups, FIRST_GROUPS)
    tile = max(width for width in range(1, min(channels, group) + 1) if channels % width == 0)
    code_bytes = 2 * heads * channels * group * bits // 8
    range_bytes = 2 * heads * (channels + group * (channels // tile)) * element
    ring_bytes = 2 * group * shape.bytes_per_layer_position if context else Fraction(0)
    held = groups * code_bytes + (context - groups * group) * shape.bytes_per_layer_position
    return KindMemory(
        f"int{bits}",
        bounded(layers * held),
        bounded(layers * (ring_bytes + room * (code_bytes + range_bytes))),
        bounded(layers * groups * range_bytes),
        "layers · (ring of 64 positions + groups allocated · (codes + scales of a group)), grown token by token",
        f"{layers} · ({number_text(ring_bytes)} + {room:,} · ({code_bytes:,} + {number_text(range_bytes)}))",
        _keeps_all(shape),
    )


def _paged(shape: CacheShape, context: int) -> KindMemory:
    blocks, token = math.ceil(context / shape.block_size), _token(shape)
    return KindMemory(
        "paged",
        bounded(context * token),
        bounded(blocks * shape.block_size * token),
        TABLE_ENTRY_BYTES * blocks,
        "⌈context / block_size⌉ · block_size · bytes per token",
        f"⌈{context:,} / {shape.block_size}⌉ · {shape.block_size} · {number_text(token)}",
        _keeps_all(shape),
    )


def _offloaded(shape: CacheShape, context: int) -> KindMemory:
    """A store of all layers outside, and working buffers for two of them, all of one doubled capacity."""
    layers, capacity = shape.caching_layers, doubled(context)
    working, layer = min(2, layers), shape.bytes_per_layer_position
    resident = bounded(working * capacity * layer)
    total = bounded((layers + working) * capacity * layer)
    note = f"{working} layers are in memory, {resident:,} bytes; the rest is on the disk, or on the host beside a GPU"
    return KindMemory(
        "offloaded",
        bounded(context * _token(shape)),
        total,
        0,
        "(layers outside + layers in memory) · doubled capacity · bytes per layer and position, grown token by token",
        f"({layers} + {working}) · {capacity:,} · {number_text(layer)}",
        "; ".join(part for part in (note, _keeps_all(shape)) if part),
        total - resident,
    )

"""What stands in a trace file: the tables, the names of the members, and the version of all this.

A `.haaw` file is a ZIP of stored members. `manifest.json` comes first. A run is cut into *segments*, at least one
for each engine step; each is self-contained and ends with its `info.json`, without which it does not count:

| member | what it holds |
|---|---|
| `s000012/events.npy` | a row of `EVENT` for each operation, declared input and fact, as they happened |
| `s000012/links.npy` | a row of `LINK` for each array that an event read: a window on a version of a buffer |
| `s000012/outputs.npy` | a row of `OUTPUT` for each array that an event made or changed, with its hash |
| `s000012/kept.npy` | a row of `KEPT` for each array whose values the file holds |
| `s000012/arena.npy` | the bytes of the small ones, one behind the other |
| `s000012/v17-weights.npy` | the values of one large array: the event's number within the segment, and a name |
| `s000012/info.json` | the string tables that the rows point into, and the facts |

`summary.json` comes last. Buffers are numbered through the whole file in the order in which they were made, events too.
A version of a buffer is the number of writes that it has had. Offsets count elements of the window's own dtype.
"""

import numpy as np

SCHEMA_VERSION = 1

MANIFEST, SUMMARY = "manifest.json", "summary.json"

OPERATION, INPUT, FACT = range(3)
"""Kinds of events."""

NOT_IN_A_LIST = 0xFFFF
NONE = -1

EVENT = np.dtype(
    [
        ("kind", "u1"),  # OPERATION, INPUT or FACT
        ("outputs", "u1"),  # how many rows of OUTPUT from first_output on
        ("name", "u2"),  # an operation: in the manifest's "ops"; else in the segment's table "names"
        ("links", "u2"),  # how many rows of LINK from first_link on
        ("stage", "u1"),  # in the segment's table "stages"
        ("part", "u1"),  # in "parts"
        ("request", "u2"),
        ("sequence", "i2"),
        ("layer", "i2"),
        ("head", "i2"),
        ("step", "i4"),
        ("site", "u2"),  # in "sites": where the operation was called
        ("args", "u2"),  # in "args": the arguments that are no arrays
        ("first_link", "u4"),
        ("first_output", "u4"),
        ("start_ns", "i8"),  # since the trace began
        ("took_ns", "f4"),
    ]
)
PLACE_FIELDS = ("stage", "part", "request", "sequence", "layer", "head", "step")
"""The fields of `EVENT` that say where in a run an event stands; they lie side by side."""

LINK = np.dtype(
    [
        ("slot", "i1"),  # which parameter
        ("item", "u2"),  # which element of a list of arrays, or NOT_IN_A_LIST
        ("layout", "u2"),  # in "layouts": dtype, shape and strides in bytes
        ("buffer", "u4"),
        ("version", "u4"),
        ("offset", "u4"),
    ]
)
OUTPUT = np.dtype(
    [
        ("buffer", "u4"),
        ("version", "u4"),
        ("layout", "u2"),
        ("offset", "u4"),
        ("hash", "u1", 16),  # xxh3-128 of the bytes in C order, seeded by dtype and shape; zeros: not hashed
    ]
)
KEPT = np.dtype(
    [
        ("event", "u4"),  # within the segment
        ("slot", "i1"),  # a parameter, or -1 - k for output k
        ("item", "u2"),
        ("layout", "u2"),
        ("member", "u1"),  # 0: in the arena, from `offset` on; 1: a member of its own
        ("offset", "u8"),
        ("nbytes", "u8"),
    ]
)

SMALL_BYTES = 64 * 1024
"""Smaller arrays share the arena of their segment."""


def segment_member(number: int, what: str) -> str:
    """The name of a member of a segment: `segment_member(12, "events.npy")`."""
    return f"s{number:06d}/{what}"


def value_member(number: int, event: int, slot: int, item: int, name: str) -> str:
    """The name of the member of a large kept array."""
    place = f"{slot}" if slot >= 0 else f"out{-1 - slot}"
    part = "" if item == NOT_IN_A_LIST else f".{item}"
    return segment_member(number, f"v{event}.{place}{part}-{name}.npy")

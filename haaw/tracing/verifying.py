"""`trace.verify`: every byte of the file, every event, and the hash of every value that is kept."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from haaw.tracing.container import TraceDamagedError
from haaw.tracing.hashing import array_hash
from haaw.tracing.outputs import path_of
from haaw.tracing.segments import SegmentReader

if TYPE_CHECKING:
    from haaw.tracing.trace import Trace


class Finding(NamedTuple):
    """Something wrong: the member of the file or the path of the value, and a sentence."""

    where: str
    sentence: str


def verify(trace: "Trace") -> Iterator[Finding]:
    """What is damaged or altered; nothing of a sound file, whole or cut."""
    damaged = False
    for damage in trace.container.verify():
        if damage.is_torn:
            continue  # the end of a file that was cut is no damage to what stands before it
        damaged = True
        yield Finding(damage.name or f"byte {damage.offset}", damage.sentence)
    for segment in trace.segments:
        try:
            yield from _verify_segment(trace, segment)
        except TraceDamagedError as error:
            if not damaged:  # else it was named above
                yield Finding(f"segment {segment.number}", str(error))


def _verify_segment(trace: "Trace", segment: SegmentReader) -> Iterator[Finding]:
    kept_rows = {event for event, slot, _ in segment.kept if slot < 0}
    for row in range(segment.count):
        event = trace.decode(segment, row)
        if row not in kept_rows:
            continue
        for number, output in enumerate(event.outputs):
            value = segment.kept_value(row, -1 - number) if output.is_kept else None
            if value is not None and output.hash is not None and array_hash(value) != output.hash:
                path = path_of(trace, event, number)
                yield Finding(
                    path, f"the kept values of {path} do not have the hash that was taken when it was made"
                )

"""`haaw memory --trace FILE`: the longest cache of a trace file beside the arithmetic."""

from pathlib import Path

from haaw.view.recorded_cache import Recorded, recorded_of


def recorded_in(path: Path, sequences: int, memory_bytes: int | None) -> Recorded:
    """The longest cache of a trace. Errors: `BadInputError` where none was released, or of a kind not calculated."""
    import haaw

    with haaw.open_trace(path) as trace:
        return recorded_of(trace, sequences=sequences, memory_bytes=memory_bytes)

"""What a pool of blocks says of itself: where its bytes are, and that it is too full."""

from dataclasses import dataclass

from haaw.caches.protocol import CacheError


class PoolFullError(CacheError):
    """A pool has too few blocks: `never` for all that it has, otherwise just now."""

    def __init__(self, message: str, *, needed_blocks: int, free_blocks: int, never: bool) -> None:
        super().__init__(message)
        self.needed_blocks = needed_blocks
        self.free_blocks = free_blocks
        self.never = never


@dataclass(frozen=True)
class PoolMemory:
    """Where the bytes of a pool are.

    `allocated_bytes` equals the buffers' `nbytes`; `used_bytes` are whole blocks, `useful_bytes` the rows in them
    that some cache has committed, `shared_bytes` the blocks that several caches hold: each said once.
    `kept_bytes` are blocks that nobody uses but that can be found again.
    """

    useful_bytes: int
    used_bytes: int
    kept_bytes: int
    allocated_bytes: int
    metadata_bytes: int
    shared_bytes: int

    @property
    def utilisation(self) -> float:
        """The part of the blocks in use that holds rows; 1 for no blocks."""
        return self.useful_bytes / self.used_bytes if self.used_bytes else 1.0


def check_ever_fits(positions: int, *, blocks: int, block_size: int) -> None:
    """Errors: `PoolFullError` (`never`) where a whole pool is too small for so many positions of one request."""
    needed = -(-positions // block_size)
    if needed > blocks:
        raise PoolFullError(
            f"the request may need {positions:,} positions, that is {needed:,} blocks of {block_size}, and the "
            f"whole pool has {blocks:,}; ask for fewer tokens, or make the pool larger",
            needed_blocks=needed,
            free_blocks=blocks,
            never=True,
        )

"""What `child.py` asks of every engine."""

from collections.abc import Sequence
from typing import Any, Protocol


class Engine(Protocol):
    """A loaded model with one cache. Every choice is greedy; ids are plain integers."""

    prefill_variants: tuple[str, ...]
    decode_variants: tuple[str, ...]

    def use(self, variant: str) -> None:
        """Switches to a variant: a chunk size or a form of attention."""

    def encode(self, text: str) -> list[int]:
        """Ids of a raw text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""

    def prefill(self, ids: Sequence[int]) -> int:
        """Runs a prompt into an empty cache; the id that follows."""

    def step(self, token_id: int) -> int:
        """Appends one token to the cache; the id that follows."""

    def generate(self, ids: Sequence[int], tokens: int) -> list[int]:
        """An answer of exactly `tokens` ids through the loop that the engine offers its users."""

    def facts(self) -> dict[str, Any]:
        """Versions, threads as the libraries report them, bytes of the weights."""

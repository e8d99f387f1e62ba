"""What a request asks of a cache that can reuse the rows of other requests, and what it is told."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from haaw.caches.protocol import KVCache


@dataclass(frozen=True)
class PrefixMatch:
    """What a look-up found, and why no more of the prompt is reused.

    `common_tokens` is the longest common prefix with anything the pool knows of, `reused_tokens` the part of it that
    comes in full blocks and leaves at least one token to compute. `differs` names what is different in
    the closest match, where the reason is a different model.
    """

    prompt_tokens: int
    common_tokens: int
    reused_tokens: int
    reason: str
    differs: tuple[str, ...] = ()


class SharesPrefixes(Protocol):
    """What a cache offers that can take over the rows of tokens that another has computed."""

    @property
    def prefix_match(self) -> PrefixMatch | None:
        """What the last look-up found."""

    def reuse_prefix(self, ids: Sequence[int]) -> int:
        """Takes over rows of the first ids, and says how many: never all of them."""

    def publish_prefix(self, ids: Sequence[int]) -> None:
        """Lets others find the rows of these ids, which are the ones that the cache has been given."""

    def withdraw_prefix(self) -> None:
        """Takes back what this cache has published."""


class _NoPrefixes:
    prefix_match = None

    def reuse_prefix(self, ids: Sequence[int]) -> int:
        return 0

    def publish_prefix(self, ids: Sequence[int]) -> None:
        pass

    def withdraw_prefix(self) -> None:
        pass


def prefixes_of(cache: KVCache) -> SharesPrefixes:
    """The cache itself where it can share prefixes, else something that finds nothing."""
    return cast(SharesPrefixes, cache if hasattr(cache, "reuse_prefix") else _NoPrefixes())

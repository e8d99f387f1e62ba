"""The cache after each step: what it holds, and the bytes of it that are useful and allocated.

Followed through the trace's own operations on the cache and its facts; the kinds are in `cache_followers`,
`cache_rings` and `cache_places`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from haaw.view.cache_followers import Follower, NoCache, Paged
from haaw.view.cache_places import Offloaded, Quantised
from haaw.view.cache_rings import Sliding

if TYPE_CHECKING:
    from haaw.view.story import Facts

FOLLOWERS: dict[str, type[Follower]] = {
    "dynamic": Follower,
    "static": Follower,
    "concatenated": Follower,
    "none": NoCache,
    "paged": Paged,
    "sliding": Sliding,
    "quantised": Quantised,
    "offloaded": Offloaded,
}

CACHE_FACTS = ("block_table", "cache_evicted", "cache_fetched", "cache_stored", "groups_quantised")


class CacheSize(TypedDict, total=False):
    """The cache when a step has ended.

    `length`: positions seen; `capacity`: positions with memory. Behind `moved` stands what one kind alone has: `blocks`
    and `shared_blocks` of a table; `oldest` position of each layer's ring; `quantised` positions and what codes, ranges
    and floats take; the store, the working buffers and what went to and fro.
    """

    step: int
    length: int
    capacity: int
    useful_bytes: int
    allocated_bytes: int
    metadata_bytes: int
    moved: int
    blocks: list[int]
    oldest: list[int | None]
    held: list[int]
    quantised: int
    parts: list[dict[str, Any]]
    working: list[dict[str, int]]
    stored_bytes: int
    fetched_bytes: int
    waited_ms: float


def cache_facts(settings: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Kind and sizes of the cache, and the bytes of one position; empty where the model's are not known."""
    from haaw.caches.protocol import CacheLayout

    names = ("layers", "kv_heads", "head_dim", "dtype")
    if any(name not in model for name in names):
        return {}
    layout = CacheLayout(*(model[name] for name in names))
    asked = settings.get("asked") or {}
    known = {"kind": asked.get("cache", ""), "options": dict(asked.get("cache_options") or {})}
    return known | {"bytes_per_position": layout.bytes_per_position} | {name: model[name] for name in names}


def cache_sizes(
    trace: Any, steps: Sequence[Mapping[str, Any]], facts: "Facts", cache: dict[str, Any]
) -> list[CacheSize]:
    """The cache after each step. `cache` gets what is the same for all steps, such as the size of a block."""
    sizes: list[CacheSize] = []
    follower = None
    for step, follower in _followed(trace, steps, facts, cache):
        made = follower.size(step["first"] + step["count"])
        sizes.append({"step": step["step"] if step["stage"] == "decode" else 0, **made})  # type: ignore[typeddict-item]
    cache.update(follower.same() if follower else {})
    return sizes


def seen_in_rings(trace: Any, story: Mapping[str, Any]) -> list[list[list[int] | None]]:
    """For each step and layer the position of each row that attention saw; None: all in order. Empty without rings."""
    from haaw.view.story import Facts

    if story["cache"].get("kind") != "sliding":
        return []
    found = []
    for step, follower in _followed(trace, story["steps"], Facts(trace.facts()), story["cache"]):
        assert isinstance(follower, Sliding)
        follower.size(step["first"] + step["count"])
        found.append([follower.seen(layer) for layer in range(follower.layers)])
    return found


def _followed(
    trace: Any, steps: Sequence[Mapping[str, Any]], facts: "Facts", cache: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], Follower]]:
    """Each step with the follower when it has ended; none for a kind of cache that is not known."""
    made = FOLLOWERS.get(cache.get("kind", ""))
    if made is None or not steps:
        return
    follower = made(cache)
    told: dict[tuple[str, int | None], list[tuple[str, dict[str, Any]]]] = {}
    for row in facts.rows:
        if row["kind"] in CACHE_FACTS:
            told.setdefault((row["stage"], row["step"]), []).append((row["kind"], row["facts"]))
    follower.prepare(trace.cache_lines(None), told.get(("prepare", None), []))
    for index, step in enumerate(steps):
        follower.take(trace.cache_lines(index), told.get((step["stage"], step["step"]), []))
        yield step, follower

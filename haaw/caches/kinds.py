"""The kinds of KV cache by name: their options, checked before anything runs, and the door to make one.

A kind is a class; its options are the keyword-only parameters of its constructor.
"""

import inspect
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from haaw.arrays import Array
from haaw.caches.concatenated import ConcatenatedCache
from haaw.caches.dynamic import DynamicCache
from haaw.caches.offloaded import OffloadedCache
from haaw.caches.paged import PagedCache
from haaw.caches.protocol import CacheError, CacheLayout, CachePlan, KVCache
from haaw.caches.quantised import QuantisedCache
from haaw.caches.sliding import SlidingCache
from haaw.caches.static import StaticCache

NO_CACHE = "none"
"""Not a kind: every step takes all ids through a fresh cache, which is dropped behind it."""


@dataclass(frozen=True)
class Kind:
    """A class of caches and what it is, in one line."""

    make: Any
    meaning: str


KINDS: dict[str, Kind] = {
    "dynamic": Kind(DynamicCache, "grows by doubling"),
    "static": Kind(StaticCache, "all memory is reserved at the start"),
    "sliding": Kind(SlidingCache, "keeps the last positions of a window, and the first ones if asked to"),
    "paged": Kind(PagedCache, "blocks out of a pool that many sequences share"),
    "quantised": Kind(QuantisedCache, "rounds what lies further back to 8 or 4 bits"),
    "offloaded": Kind(OffloadedCache, "lives on the host or the disk, and two layers of it in memory"),
    "concatenated": Kind(ConcatenatedCache, "copies everything for each token; here to be measured against"),
}


def make_cache(
    kind: str, layout: CacheLayout, prototype_Z: Array, *, context_length_tokens: int, **options: Any
) -> KVCache:
    """A new, empty cache; `prototype_Z` is any array of the library and device to live on.

    Errors: as for `plan_cache`. For the mode "none" the cache is one that a single step fills.
    """
    plan_cache(kind, layout, context_length_tokens=context_length_tokens, **options)
    found = KINDS["dynamic" if kind == NO_CACHE else kind].make
    cache: KVCache = found(
        layout, prototype_Z, **_with_context(found.__init__, options, context_length_tokens)
    )
    return cache


def plan_cache(kind: str, layout: CacheLayout, *, context_length_tokens: int, **options: Any) -> CachePlan:
    """Judges a kind and its options for one model, without making the cache.

    Errors: `CacheError` for an unknown kind or option, or a value that cannot be.
    """
    check_options(kind, options)
    plan = None if kind == NO_CACHE else getattr(KINDS[kind].make, "plan", None)
    if plan is None:
        return CachePlan()
    judged: CachePlan = plan(layout, context_length_tokens=context_length_tokens, **options)
    return judged


def check_options(kind: object, options: Mapping[str, Any]) -> None:
    """Checks names and types, which need no model.

    Errors: `CacheError` that names what was wrong and what there is.
    """
    if not isinstance(kind, str) or (kind not in KINDS and kind != NO_CACHE):
        raise CacheError(f"the cache {kind!r:.60} is unknown; there are {', '.join([*KINDS, NO_CACHE])}")
    known = options_of(kind)
    for name, value in options.items():
        if name not in known:
            there = f"it has {', '.join(known)}" if known else "it has none"
            raise CacheError(f'the cache "{kind}" has no option "{name!s:.60}"; {there}')
        if not _fits(value, known[name]):
            raise CacheError(
                f'the option "{name}" of the cache "{kind}" is {value!r:.60}; it must be {_spelled(known[name])}'
            )


def options_of(kind: str) -> dict[str, Any]:
    """The options of a kind: their names and types."""
    if kind == NO_CACHE:
        return {}
    build = KINDS[kind].make.__init__
    hints = get_type_hints(build)
    return {name: hints[name] for name in _keywords(build) if name != "context_length_tokens"}


def _keywords(build: Any) -> list[str]:
    parameters = inspect.signature(build).parameters.values()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]


def _with_context(build: Any, options: Mapping[str, Any], context_length_tokens: int) -> dict[str, Any]:
    if "context_length_tokens" not in _keywords(build):
        return dict(options)
    return {**options, "context_length_tokens": context_length_tokens}


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return any(type(value) is type(each) and value == each for each in get_args(hint))
    if hint is None or hint is type(None):
        return value is None
    if hint in (int, float):
        numbers = (int,) if hint is int else (int, float)
        return isinstance(value, numbers) and not isinstance(value, bool)
    return not isinstance(hint, type) or isinstance(value, hint)  # other types are the class's own business


_SPELLED = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    type(None): "none",
}


def _spelled(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(map(_spelled, get_args(hint)))
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    return _SPELLED.get(hint, getattr(hint, "__name__", str(hint)))

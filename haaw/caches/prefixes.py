"""Which blocks hold the rows of which tokens: a chain of hashes from block to block, and the tokens themselves.

A block's rows depend on all tokens before it, so its name is the hash of its parent's hash and its own tokens. The
chain begins with the identity of the model. A hash only says where to look: a block counts when its tokens and
its parent are the same. Source: Kwon et al. 2023, arXiv:2309.06180, section 4.4.
"""

from array import array
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from haaw.caches.prefix_sharing import PrefixMatch

HASH_BYTES = 16
Identity = Mapping[str, str]


def chain_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a block that follows the one with the hash `parent`."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=HASH_BYTES).digest()


def identity_hash(identity: Identity) -> bytes:
    """The hash that a chain begins with."""
    return blake2b(repr(sorted(identity.items())).encode(), digest_size=HASH_BYTES).digest()


class Known:
    """A block that can be found, or the beginning of a chain (`parent` None, `block` -1).

    `continuations` are the tokens that are known to follow it, sorted: those of full blocks, and tails that are
    too short for one.
    """

    __slots__ = ("block", "children", "continuations", "digest", "identity", "parent", "tokens")

    def __init__(
        self,
        parent: "Known | None",
        tokens: tuple[int, ...],
        digest: bytes,
        block: int,
        identity: Identity,
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.digest = digest
        self.block = block
        self.identity = identity
        self.children: dict[bytes, Known] = {}
        self.continuations: list[tuple[int, ...]] = []

    def longest_common(self, tokens: tuple[int, ...]) -> int:
        """How many of `tokens` begin something that follows; its neighbours in the order have the most."""
        at = bisect_left(self.continuations, tokens)
        return max(
            (common_length(each, tokens) for each in self.continuations[max(0, at - 1) : at + 1]), default=0
        )


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many elements two sequences begin with alike."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


class PrefixIndex:
    """All blocks that can be found. Knows token ids and block numbers; nothing of arrays and counts.

    Remembers the hashes of as many evicted blocks and as many short tails as the pool has blocks.
    """

    def __init__(self, block_size: int, most_remembered: int) -> None:
        self.block_size = block_size
        self.collisions = 0
        self._most = most_remembered
        self._roots: dict[frozenset[tuple[str, str]], Known] = {}
        self._by_digest: dict[bytes, Known] = {}
        self._by_block: dict[int, Known] = {}
        self._evicted: OrderedDict[bytes, None] = OrderedDict()
        self._tails: OrderedDict[tuple[Known, tuple[int, ...]], None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._by_block

    def __len__(self) -> int:
        return len(self._by_block)

    @property
    def metadata_bytes(self) -> int:
        """Hash, parent, block number and tokens of every block that can be found, in integers of 8 bytes."""
        return len(self._by_block) * (HASH_BYTES + 8 * (2 + self.block_size))

    def blocks(self) -> list[int]:
        """The blocks that can be found."""
        return list(self._by_block)

    def look_up(self, identity: Identity, ids: Sequence[int]) -> tuple[list[int], PrefixMatch]:
        """The blocks that can be reused for a prompt, and what to say of it."""
        found = self._walk(self._root(identity), tuple(ids))
        reused = found.blocks[: (len(ids) - 1) // self.block_size]
        reason, differs = self._reason(identity, tuple(ids), len(reused), found)
        match = PrefixMatch(len(ids), found.common, len(reused) * self.block_size, reason, differs)
        return reused, match

    def _root(self, identity: Identity) -> Known:
        root = self._roots.get(frozenset(identity.items()))
        return root or Known(None, (), identity_hash(identity), -1, dict(identity))

    def _walk(self, entry: Known, ids: tuple[int, ...]) -> "_Found":
        """Follows the chain block by block for as long as tokens and parents are the same."""
        size, found = self.block_size, _Found()
        while len(tokens := self._tokens(ids, len(found.blocks))) == size:
            child = self._child(entry, tokens, found)
            if child is None:
                break
            found.blocks.append(child.block)
            entry = child
        at, digest = len(found.blocks), entry.digest
        found.common = at * size + entry.longest_common(self._tokens(ids, at))
        while len(tokens := self._tokens(ids, at)) == size:
            digest = chain_hash(digest, tokens)
            if digest not in self._evicted:
                break
            at, found.evicted = at + 1, True
            found.common = at * size
        return found

    def _tokens(self, ids: tuple[int, ...], block: int) -> tuple[int, ...]:
        return ids[block * self.block_size : (block + 1) * self.block_size]

    def _child(self, entry: Known, tokens: tuple[int, ...], found: "_Found") -> Known | None:
        held = self._by_digest.get(chain_hash(entry.digest, tokens))
        if held is None or (held.parent is entry and held.tokens == tokens):
            return held
        self.collisions += 1
        found.collided = True
        return None

    def _reason(
        self, identity: Identity, ids: tuple[int, ...], reused: int, found: "_Found"
    ) -> tuple[str, tuple[str, ...]]:
        """Why no more is reused than `reused` blocks."""
        left = len(ids) - reused * self.block_size
        if left == 1 or (left == self.block_size and found.common == len(ids)):
            return "last token must be recomputed", ()
        if found.evicted and left > self.block_size:
            return "evicted", ()
        if found.common > reused * self.block_size:
            return "below block size", ()
        if found.collided:
            return "hash collision", ()
        if reused:
            return "stored prefix ends", ()
        differs = self._closest_other(identity, ids)
        if differs:
            return "different model", differs
        return ("no match" if self._by_block else "nothing stored"), ()

    def _closest_other(self, identity: Identity, ids: tuple[int, ...]) -> tuple[str, ...]:
        """What differs in the identity under which the most of these ids is known; nothing if none is."""
        own, most = dict(identity), 0
        names: tuple[str, ...] = ()
        for root in self._roots.values():
            common = self._walk(root, ids).common
            if common > most and root.identity != own:
                keys = sorted(own.keys() | root.identity.keys())
                most, names = common, tuple(key for key in keys if own.get(key) != root.identity.get(key))
        return names

    def publish(self, identity: Identity, ids: Sequence[int], table: Sequence[int]) -> list[int]:
        """Makes the full blocks of `ids`, which `table` holds, findable; the numbers of those that are new."""
        entry, ids, new = self._root(identity), tuple(ids), []
        full = len(ids) // self.block_size
        for number in range(full):
            tokens = self._tokens(ids, number)
            digest = chain_hash(entry.digest, tokens)
            held = self._by_digest.get(digest)
            if held is None and table[number] not in self._by_block:
                held = self._add(entry, tokens, digest, table[number])
                new.append(table[number])
            elif held is None or held.parent is not entry or held.tokens != tokens:
                self.collisions += held is not None
                return new
            entry = held
        if tail := self._tokens(ids, full):
            self._remember_tail(entry, tail)
        return new

    def _add(self, parent: Known, tokens: tuple[int, ...], digest: bytes, block: int) -> Known:
        entry = Known(parent, tokens, digest, block, parent.identity)
        self._keep_root(parent)
        parent.children[digest] = self._by_digest[digest] = self._by_block[block] = entry
        insort(parent.continuations, tokens)
        self._evicted.pop(digest, None)
        return entry

    def _keep_root(self, entry: Known) -> None:
        if entry.parent is None:
            self._roots[frozenset(entry.identity.items())] = entry

    def _remember_tail(self, entry: Known, tail: tuple[int, ...]) -> None:
        if (entry, tail) in self._tails:
            return
        self._keep_root(entry)
        insort(entry.continuations, tail)
        self._tails[entry, tail] = None
        if len(self._tails) > self._most:
            old, tokens = self._tails.popitem(last=False)[0]
            old.continuations.remove(tokens)
            self._drop_bare_root(old)

    def _drop_bare_root(self, entry: Known) -> None:
        if entry.parent is None and not entry.continuations:
            self._roots.pop(frozenset(entry.identity.items()), None)

    def remove(self, block: int, *, evicted: bool = False) -> list[int]:
        """Forgets a block and what follows it, which nobody could find without it; their numbers."""
        entry = self._by_block[block]
        assert entry.parent is not None
        entry.parent.continuations.remove(entry.tokens)
        del entry.parent.children[entry.digest]
        self._drop_bare_root(entry.parent)
        removed, waiting = [], [entry]
        while waiting:
            each = waiting.pop()
            waiting.extend(each.children.values())
            del self._by_digest[each.digest], self._by_block[each.block]
            removed.append(each.block)
            if evicted:
                self._evicted[each.digest] = None
        while len(self._evicted) > self._most:
            self._evicted.popitem(last=False)
        return removed


class _Found:
    """A walk along a chain: the blocks, the longest common prefix, and what ended it."""

    __slots__ = ("blocks", "collided", "common", "evicted")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.common = 0
        self.evicted = False
        self.collided = False

"""One layer of a sliding cache: the first positions, and of the later ones the last few, in a ring.

Position p lies in row p where p < sinks, else in row sinks + (p - sinks) mod tokens. Behind these rows is one
more, the spare: it keeps the row that a decode step overwrites until the step is complete.
"""

from collections.abc import Iterator, Sequence

from haaw.arrays import Array
from haaw.caches.protocol import CacheLayout, Window
from haaw.caches.writes import kv_allocate, kv_append, kv_move

Pair = tuple[Array, Array]
"""Keys and values."""


class Ring:
    """Rows of one layer. Positions `oldest` … `length` - 1 and those below `sinks` are held.

    A single row is written at once. Where more rows than the ring has free arrive, they wait beside it until
    `commit`: the earlier ones of them still need what the later ones will overwrite.
    """

    def __init__(self, window: Window, layout: CacheLayout, prototype_Z: Array) -> None:
        self.window = window
        self.room = window.sinks + window.tokens
        self.length = 0
        self.under_way = 0
        self.oldest = window.sinks
        self._layout = layout
        self._prototype_Z = prototype_Z
        self._buffers = self._allocate(self.room + 1)
        self._waiting: Pair | None = None
        self._replaced = False

    def _allocate(self, rows: int) -> Pair:
        layout = self._layout
        shape = layout.kv_heads, rows, layout.head_dim
        return (
            kv_allocate(*shape, dtype=layout.dtype, prototype_Z=self._prototype_Z),
            kv_allocate(*shape, dtype=layout.dtype, prototype_Z=self._prototype_Z),
        )

    @property
    def arrays(self) -> list[Array]:
        """All memory that is held now, the waiting rows of a step included."""
        return [*self._buffers, *(self._waiting or ())]

    @property
    def held(self) -> int:
        """Committed positions that can be looked at."""
        return min(self.length, self.window.sinks) + max(self.length - self.oldest, 0)

    def append(self, key_TKC: Array, value_TKC: Array) -> None:
        """Takes rows behind those that there are."""
        start, tokens = self.length + self.under_way, key_TKC.shape[0]
        if start + tokens > self.room:
            if tokens > 1 or self.under_way:
                self._wait(key_TKC, value_TKC)
                self.under_way += tokens
                return
            self._copy_row(self._row(start), self.room)
            self._replaced = True
        for buffer_KPC, rows_TKC in zip(self._buffers, (key_TKC, value_TKC), strict=True):
            kv_append(buffer_KPC, rows_TKC, start=self._row(start))
        self.under_way += tokens

    def _row(self, position: int) -> int:
        sinks = self.window.sinks
        return position if position < sinks else sinks + (position - sinks) % self.window.tokens

    def _copy_row(self, source: int, target: int) -> None:
        for buffer_KPC in self._buffers:
            kv_append(buffer_KPC, _rows(buffer_KPC[:, source : source + 1]), start=target)

    def _wait(self, key_TKC: Array, value_TKC: Array) -> None:
        """Puts the rows of the step beside the ring, and what was written already back as it was."""
        waiting = self._allocate(self.under_way + key_TKC.shape[0])
        for part, rows_TKC in enumerate((key_TKC, value_TKC)):
            _fill(waiting[part], [*self._rows_under_way(part), rows_TKC.transpose(1, 0, 2)])
        self._put_back()
        self._waiting = waiting

    def _rows_under_way(self, part: int) -> Iterator[Array]:
        if self._waiting is not None:
            yield self._waiting[part]
        elif self.under_way:
            yield from self._windows(part, self.length, self.length + self.under_way)

    def _windows(self, part: int, start: int, stop: int) -> Iterator[Array]:
        """Windows on the rows of the positions start … stop - 1, all of one kind, in order."""
        while start < stop:
            row = self._row(start)
            until = self.window.sinks if start < self.window.sinks else self.room
            count = min(stop - start, until - row)
            yield self._buffers[part][:, row : row + count]
            start += count

    def _put_back(self) -> None:
        if self._replaced:
            self._copy_row(self.room, self._row(self.length))
        self._replaced = False

    def view(self) -> Pair:
        """Keys and values (K, S, C); a window on the ring wherever all its rows count, else in order of position."""
        end = self.length + self.under_way
        full = self._replaced or self.held == self.room
        if self._waiting is None and (full or self._in_order(end)):
            keys_KPC, values_KPC = self._buffers
            return keys_KPC[:, : min(end, self.room)], values_KPC[:, : min(end, self.room)]
        sinks = min(self.length, self.window.sinks)
        joined = self._allocate(len(self.positions()))
        for part in range(2):
            old = [*self._windows(part, 0, sinks), *self._windows(part, self._first_seen(), self.length)]
            _fill(joined[part], [*old, *self._rows_under_way(part)])
        return joined

    def positions(self, more: int | None = None) -> Sequence[int]:
        """The position of each row of the view, with `more` rows under way instead of those that are."""
        more = self.under_way if more is None else more
        end, sinks = self.length + more, self.window.sinks
        if self._in_order(end):
            return range(end)
        if more == 1 or (more == 0 and self.held == self.room):
            turned = self._row(end)
            ring = [*range(end - turned + sinks, end), *range(end - self.window.tokens, end - turned + sinks)]
            return [*range(sinks), *ring]
        first = self._first_seen()
        if sinks == 0:
            return range(first, end)
        return [*range(min(self.length, sinks)), *range(first, self.length), *range(self.length, end)]

    def _in_order(self, end: int) -> bool:
        """Whether each of the first `end` positions lies in the row of its number: nothing was evicted yet."""
        return end <= self.room and self.oldest == self.window.sinks

    def _first_seen(self) -> int:
        """The oldest position, sinks apart, that a token at `length` looks at."""
        return min(
            max(self.oldest, self.length - self.window.tokens + 1), max(self.length, self.window.sinks)
        )

    def commit(self) -> tuple[int, int]:
        """Makes the rows under way part of the ring; returns the positions from … to before which were evicted."""
        end, sinks, tokens = self.length + self.under_way, self.window.sinks, self.window.tokens
        if self._waiting is not None:
            for start, stop in (
                (self.length, min(end, sinks)),
                (max(self.length, sinks, end - tokens), end),
            ):
                self._write_waiting(start, stop)
        before, self.oldest = self.oldest, max(self.oldest, end - tokens)
        self.length, self.under_way, self._waiting, self._replaced = end, 0, None, False
        return before, self.oldest

    def _write_waiting(self, start: int, stop: int) -> None:
        assert self._waiting is not None
        for part, waiting_KPC in enumerate(self._waiting):
            position = start
            for window_KSC in self._windows(part, start, stop):
                count, first = window_KSC.shape[1], position - self.length
                rows_KSC = waiting_KPC[:, first : first + count]
                kv_append(window_KSC, _rows(rows_KSC), start=0)
                position += count

    def drop(self) -> None:
        """Forgets the rows under way; the ring is as it was before them."""
        self._put_back()
        self.under_way, self._waiting = 0, None

    def can_crop(self, length: int) -> bool:
        """Whether all that a token at `length` looks at is held."""
        first = max(self.window.sinks, length - self.window.tokens + 1)
        return length == self.length or first >= min(self.oldest, length)

    def crop(self, length: int) -> None:
        """Forgets the positions from `length` on."""
        self.drop()
        self.length = length
        self.oldest = max(self.window.sinks, min(self.oldest, length))

    def copy_from(self, other: "Ring") -> None:
        """Takes over the committed rows of a ring of the same window."""
        self.length, self.oldest = other.length, other.oldest
        for new_KPC, old_KPC in zip(self._buffers, other._buffers, strict=True):
            kv_move(new_KPC, old_KPC)
        if other._replaced:
            self._copy_row(self.room, self._row(self.length))


def _fill(buffer_KPC: Array, pieces_KSC: Sequence[Array]) -> None:
    """Writes the pieces behind one another."""
    start = 0
    for piece_KSC in pieces_KSC:
        if piece_KSC.shape[1]:
            kv_append(buffer_KPC, _rows(piece_KSC), start=start)
            start += piece_KSC.shape[1]


def _rows(piece_KSC: Array) -> Array:
    return piece_KSC.transpose(1, 0, 2)

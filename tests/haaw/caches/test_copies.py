"""What an append copies of the rows that were there before: counted from the memory that operations read.

A row of history is one that lies in memory which an operation `kv_allocate…` made. Whoever reads such rows, but for
attention, copies history. FAULTS: S71, S72 (two ways to fill).
"""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from haaw.arrays import is_array, owner
from haaw.caches.kinds import KINDS, make_cache
from haaw.caches.protocol import CacheLayout
from haaw.ops.recorder import Recorder, recording

LAYOUT = CacheLayout(layers=3, kv_heads=2, head_dim=4, dtype="float32")
ROW = 2 * 4 * 4  # bytes of a key, or a value, of one layer
PAIRS = 2 * LAYOUT.layers  # keys and values of every layer
TOKENS = 300


class HistoryRead(Recorder):
    """Rows of history that each operation has read, by its name."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self._made: dict[int, Any] = {}  # held, so that no identity comes twice

    def run(self, op: Any, args: Any, kwargs: Any, scope: Any) -> Any:
        result = op.plain(*args, **kwargs)
        if op.name.startswith("kv_allocate"):
            self._made[id(owner(result))] = owner(result)
            return result
        named = {**dict(zip(op.parameters, args, strict=False)), **kwargs}
        for name, value in named.items():
            for part in value if isinstance(value, list) else [value]:
                if name != op.writes and is_array(part) and id(owner(part)) in self._made:
                    self.rows[op.name] += part.nbytes // ROW
        if op.name == "kv_copy_block":  # reads what it writes to
            self.rows[op.name] += named["buffer_KMPC"][:, 0].nbytes // ROW
        return result

    def declare(self, name: str, array: Any, scope: Any) -> None: ...

    def know_weights(self, weights: Any) -> None: ...

    def emit(self, kind: str, facts: Any, scope: Any) -> None: ...


def rows_read(kind: str, **options: Any) -> list[Counter[str]]:
    """What each of 300 appends, one by one, has read of history; each is looked at, as attention does."""
    steps = []
    row_TKC = np.ones((1, 2, 4), np.float32)
    whole = HistoryRead()
    with recording(whole):
        cache = make_cache(kind, LAYOUT, np.zeros(1, np.float32), context_length_tokens=TOKENS, **options)
    for _ in range(TOKENS):
        before = Counter(whole.rows)
        with recording(whole):
            for layer in range(LAYOUT.layers):
                cache.append(layer, row_TKC, row_TKC)
                cache.view(layer)
            cache.commit(1)
        steps.append(whole.rows - before)
    return steps


@pytest.mark.parametrize("kind", ["static", "paged"])
def test_an_append_reads_nothing_of_what_was_there(kind):
    assert rows_read(kind) == [Counter()] * TOKENS


def test_a_dynamic_cache_reads_history_at_its_doublings_alone():
    """64, 128 and 256 rows are moved, for the tokens 65, 129 and 257: 448 copies for 300 tokens."""
    steps = rows_read("dynamic")
    moved = {number: step["kv_move"] for number, step in enumerate(steps, 1) if step}
    assert moved == {65: 64 * PAIRS, 129: 128 * PAIRS, 257: 256 * PAIRS}
    assert all(step.keys() <= {"kv_move"} for step in steps)


def test_a_concatenated_cache_reads_all_of_it_each_time():
    """0 + 1 + … + 299 = 44,850 rows, where the doublings move 448."""
    steps = rows_read("concatenated")
    assert [step["kv_move"] for step in steps] == [held * PAIRS for held in range(TOKENS)]
    assert sum(step["kv_move"] for step in steps) == 44_850 * PAIRS


def test_a_sliding_cache_reads_the_row_that_it_overwrites_and_no_other():
    steps = rows_read("sliding", window=50, sinks=3)
    assert steps[:53] == [Counter()] * 53
    assert steps[53:] == [Counter(kv_append=PAIRS)] * (TOKENS - 53)


def test_a_quantised_cache_reads_each_row_once_to_make_codes_of_it_and_moves_none():
    """Groups of 32, the latest 32 to 63 as floats: at 300 tokens 256 have become codes. Views read codes only."""
    steps = rows_read("quantised", bits=8)
    total = sum(steps, Counter())
    assert total.keys() == {"kv_quantise_lowest", "kv_quantise_step", "kv_quantise_group", "kv_dequantise"}
    assert [number for number, step in enumerate(steps, 1) if step["kv_quantise_lowest"]] == [
        *range(64, 300, 32)
    ]
    assert total["kv_quantise_lowest"] == 256 * PAIRS


def test_an_offloaded_cache_brings_in_what_attention_will_read_and_moves_none():
    """Each step each layer's rows once; those that came in while the layer before was at work count once too."""
    steps = rows_read("offloaded")
    assert all(step.keys() <= {"kv_fetch"} for step in steps)
    assert steps[-1]["kv_fetch"] == pytest.approx((TOKENS - 1) * PAIRS, abs=PAIRS)


def test_no_kind_is_left_out():
    assert set(KINDS) == {"static", "paged", "dynamic", "concatenated", "sliding", "quantised", "offloaded"}

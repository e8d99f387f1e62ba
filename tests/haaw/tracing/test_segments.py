"""What a segment's reader makes of its tables."""

import numpy as np
import pytest

from haaw.tracing.display import shown
from haaw.tracing.schema import KEPT, LINK
from haaw.tracing.segment import Rows
from haaw.tracing.segments import KeptRows


def test_kept_rows_are_the_mapping_that_a_dict_of_them_would_be(rng):
    table = np.zeros(400, KEPT)
    for name, choices in {
        "event": [0, 1, 2**32 - 1],
        "slot": [-128, -1, 0, 127],
        "item": [0, 7, 0xFFFF],
    }.items():
        table[name] = rng.choice(choices, 400)
    for name in ("layout", "member", "offset", "nbytes"):
        table[name] = rng.integers(0, 200, 400)
    kept = KeptRows(table)
    wanted = {(event, slot, item): tuple(rest) for event, slot, item, *rest in table.tolist()}
    assert dict(kept) == wanted
    assert len(kept) == len(wanted) < 400
    for key in ((0, 128, 0), (0, -129, 0), (0, -257, 0), (1, 0, -1), (0, 0, 0x10000), (-1, 0, 0), (5, 0, 0)):
        assert key not in kept
    assert (0, 0, 0) in kept


@pytest.mark.parametrize(("value", "said"), [
    (12549.3, "12,549"), (9999.6, "10,000"), (9999.4, "9999"), (0.25, "0.25"), (-2e6, "-2,000,000"), (1e20, "1e+20"),
    (float("inf"), "inf"), (7, "7"), (70_000, "70,000"), (None, "–"), (True, "yes"),
])  # fmt: skip
def test_numbers_of_a_table_are_written_for_a_person(value, said):
    assert shown(value) == said


def test_a_table_grows_also_while_somebody_looks_at_its_bytes():
    """As an interrupt in `write` does, for as long as its traceback is kept."""
    rows = Rows(LINK, 2)
    rows.extend(np.ones(2, dtype=LINK))
    with memoryview(rows.buffer):
        rows.grow()
        rows.extend(np.zeros(3, dtype=LINK))
    assert rows.table()["layout"].tolist() == [1, 1, 0, 0, 0]

"""A plan held against a run of a small model: what is counted is equal, what is measured is plausible and labelled."""

import sys

import pytest
from support.gguf_models import tiny_gguf

import haaw
from haaw.memory import CacheShape, kind_memory
from haaw.memory.measured import anonymous_bytes, measure

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_the_plan_of_the_cache_is_what_its_arrays_take(tmp_path, kind):
    path = tiny_gguf(tmp_path / "tiny.gguf")

    def planned(layout, positions):
        shape = CacheShape(layout.layers, layout.kv_heads, layout.head_dim, 4)
        return kind_memory(shape, kind, positions).allocated_bytes

    result = measure(
        lambda: haaw.load(path).transformer,
        planned_cache_bytes=planned,
        positions=100,
        new_tokens=5,
        kind=kind,
    )
    assert result.cache_planned_bytes == result.cache_counted_bytes > 0
    lines = {line.name: line for line in result.lines}
    weights = sum(array.nbytes for array in haaw.load(path).transformer.named_weights().values())
    assert lines["weights"].planned_bytes == weights
    assert lines["activations of a step"].how == "estimated"
    whole, difference = lines["the whole run"], lines["difference"]
    assert whole.measured_bytes - whole.planned_bytes == difference.measured_bytes


def test_more_positions_than_the_model_has_are_refused(tmp_path):
    path = tiny_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(haaw.BadInputError, match="129 positions"):
        measure(lambda: haaw.load(path).transformer, planned_cache_bytes=lambda *_: 0, positions=129)


def test_anonymous_memory_grows_by_what_is_written():
    before = anonymous_bytes()
    block = b"\1" * 64_000_000
    assert 60_000_000 < anonymous_bytes() - before < 80_000_000
    del block

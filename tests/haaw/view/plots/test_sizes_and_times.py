"""The cache's growth, the phases and a memory plan: bytes and seconds equal those of the trace and of the plan."""

from itertools import pairwise

import pytest
from support.traced import PROMPT, model_of

from haaw.errors import BadInputError
from haaw.memory.plan import Plan
from haaw.memory.presets import PRESETS
from haaw.view.plots import plot_cache, plot_memory_plan, plot_phases

pytest.importorskip("matplotlib")


def heights(collection):
    """Step by step, the upper edge of a filled area with `step="post"`: of each step the greatest at its middle."""
    vertices = collection.get_paths()[0].vertices
    count = int(vertices[:, 0].max())
    found = []
    for step in range(count):
        inside = vertices[(vertices[:, 0] >= step) & (vertices[:, 0] <= step + 1)]
        pairs = pairwise(inside)
        level = [a[1] for a, b in pairs if a[1] == b[1] and {a[0], b[0]} == {step, step + 1}]
        found.append(max(level))
    return found


def test_useful_and_allocated_bytes_are_those_of_the_caches_contents(trace):
    figure = plot_cache(trace)
    useful, allocated = (heights(each) for each in figure.axes[0].collections[:2])
    for number, step in enumerate([*trace.steps("prefill"), *trace.steps("decode")]):
        layers = [trace.cache(step, layer) for layer in range(6)]
        assert useful[number] * 1024 == sum(each.useful_bytes for each in layers)
        assert allocated[number] * 1024 == sum(each.allocated_bytes for each in layers)


def test_the_end_is_what_was_released(trace):
    figure, released = plot_cache(trace), trace.facts("released")[0].facts
    useful, allocated = (heights(each)[-1] * 1024 for each in figure.axes[0].collections[:2])
    assert (useful, allocated) == (released["useful_bytes"], released["bytes"])


def test_a_doubling_is_marked_where_rows_were_moved(trace):
    moves = {each.place.step for each in trace if each.name == "kv_move"}
    marks = next(
        line for line in plot_cache(trace).axes[0].lines if line.get_label().startswith("rows moved")
    )
    assert {int(step) for step in marks.get_xdata()} == moves == {5}  # 16 rows are full before the fifth step


def test_it_needs_no_values_and_no_model(record):
    trace = record(model_of("random"), list(PROMPT), "events", weights=False, max_tokens=4)
    released = trace.facts("released")[0].facts
    assert heights(plot_cache(trace).axes[0].collections[0])[-1] * 1024 == released["useful_bytes"]


@pytest.mark.parametrize(
    ("kind", "options"),
    [("static", {}), ("paged", {"block_size": 4}), ("sliding", {"window": 5, "sinks": 2})],
)
def test_other_kinds_end_with_what_they_released(record, kind, options):
    trace = record(model_of("random"), list(PROMPT), max_tokens=9, cache=kind, cache_options=options)
    released, figure = trace.facts("released")[0].facts, plot_cache(trace)
    factor = {"bytes": 1, "KiB": 1024}[figure.axes[0].get_ylabel()]
    ends = [heights(each)[-1] * factor for each in figure.axes[0].collections[:2]]
    assert ends == [released["useful_bytes"], released["bytes"]]


@pytest.mark.parametrize(
    ("kind", "words"), [("none", "without a cache"), ("quantised", "when it was released, .* were useful of")]
)
def test_a_cache_that_cannot_be_drawn_is_an_error_with_what_is_known(record, kind, words):
    with pytest.raises(BadInputError, match=words):
        plot_cache(record(model_of("random"), list(PROMPT), max_tokens=2, cache=kind))


def test_phases_are_those_of_the_trace(trace):
    figure = plot_phases(trace)
    times, work = figure.axes
    phases = [phase for phase in trace.phases() if phase.name != "start-up"]
    assert times.get_xlabel() == "ms"
    assert [tick.get_text() for tick in times.get_yticklabels()] == [phase.name for phase in phases]
    assert [bar.get_width() / 1e3 for bar in times.patches] == pytest.approx(
        [phase.took_s for phase in phases]
    )
    known = [phase.operations / phase.bytes for phase in phases if phase.bytes]
    assert [bar.get_width() for bar in work.patches] == pytest.approx(known)


def test_the_phases_of_an_answer_add_up_to_its_time(answered):
    figure = plot_phases(answered[1])
    assert sum(bar.get_width() for bar in figure.axes[0].patches) / 1e3 == pytest.approx(
        answered[1].timing_s["total"]
    )
    assert len(figure.axes) == 1


def test_a_memory_plan_shows_its_own_figures():
    """32 layers · 2 · 8 heads · 128 · 2 bytes · 8,192 positions = 1 GiB a sequence, by hand."""
    figure = plot_memory_plan(
        Plan(PRESETS["reference"].shape, 8192, 2, memory_bytes=3 << 30, weights_bytes=1 << 29)
    )
    growth, kinds = figure.axes
    assert growth.get_ylabel() == "GiB"
    area = growth.collections[1].get_paths()[0].vertices
    assert area[:, 1].max() == 2.5  # half a GiB of weights and two of cache
    assert growth.lines[0].get_ydata()[0] == 3
    assert [tick.get_text() for tick in kinds.get_xticklabels()][:2] == ["dynamic", "static"]
    weights, held, rest = (bar.get_height() for bar in kinds.patches[:3])
    assert (weights, held, rest) == (0.5, 2, 0)


def test_the_kinds_of_a_plan_stand_at_their_allocated_bytes():
    plan = Plan(PRESETS["smollm2-135m"].shape, 1000, 3, kind="dynamic")
    kinds = plot_memory_plan(plan).axes[1]
    tops: dict[int, float] = {}
    for bar in kinds.patches:
        place = round(bar.get_x() + bar.get_width() / 2)
        tops[place] = max(tops.get(place, 0), bar.get_y() + bar.get_height())
    assert [top * 2**20 for top in tops.values()] == pytest.approx(
        [3 * each.total_bytes for each in plan.kinds()]
    )


def test_where_the_memory_ends_is_marked():
    plan = Plan(PRESETS["reference"].shape, 8192, 2, memory_bytes=1 << 30)
    growth = plot_memory_plan(plan).axes[0]
    (limit,) = [line for line in growth.lines if line.get_linestyle() == ":"]
    assert limit.get_xdata()[0] == plan.largest_context().value == 4096
    assert "does not fit" in plot_memory_plan(plan).description

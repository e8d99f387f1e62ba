"""Events that are grouped as alike, held against a comparison of everything that two events could differ in."""

from types import SimpleNamespace

import numpy as np
import pytest
from support.traced import full_trace, model_of, opened

from haaw.tracing.alike import alike
from haaw.tracing.schema import EVENT, LINK, OUTPUT


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_rows_are_in_one_group_exactly_when_they_are_alike(tmp_path, family):
    model = model_of(family)
    with opened(full_trace(tmp_path / "run.haaw", model), model) as trace:
        for segment in trace.segments:
            first, group = alike(segment)
            said = [
                (
                    event.kind,
                    event.name,
                    segment.info["sites"][site] if event.kind == "operation" else None,
                    [(link.slot, link.item, link.window.layout) for link in event.inputs],
                    [output.window.layout for output in event.outputs],
                )
                for event, site in (
                    (trace.decode(segment, row), site)
                    for row, site in enumerate(segment.events["site"].tolist())
                )
            ]
            assert sorted(first) == sorted({group.tolist().index(number) for number in range(len(first))})
            assert [said[first[number]] for number in group.tolist()] == said
            assert len({str(each) for each in said}) == len(first)


def test_random_tables_are_grouped_by_everything_but_place_time_and_buffers(rng):
    """Few values of each field, so that all pairs of rows that differ in one alone occur."""
    for _ in range(20):
        counts = rng.integers(0, 3, (2, 300))
        events = np.zeros(300, EVENT)
        events["links"], events["outputs"] = counts
        events["first_link"], events["first_output"] = np.cumsum(counts, axis=1) - counts
        links, outputs = np.zeros(counts[0].sum(), LINK), np.zeros(counts[1].sum(), OUTPUT)
        choices = {
            "kind": 3,
            "name": 2,
            "site": 2,
            "slot": [-1, 0, 100],
            "item": [0, 0xFFFF],
            "layout": [0, 3, 0xFFFF],
        }
        for table in (events, links, outputs):
            for name in table.dtype.names:
                if name not in ("links", "outputs", "first_link", "first_output", "hash"):
                    table[name] = rng.choice(choices.get(name, 100), len(table))
        first, group = alike(SimpleNamespace(events=events, links=links, outputs=outputs))
        said = [
            (
                *(int(event[name]) for name in ("kind", "name", "site")),
                links[["slot", "item", "layout"]][link : link + event["links"]].tolist(),
                outputs["layout"][output : output + event["outputs"]].tolist(),
            )
            for event, link, output in zip(events, events["first_link"], events["first_output"], strict=True)
        ]
        assert [said[first[number]] for number in group.tolist()] == said
        assert len({str(each) for each in said}) == len(first)

"""Events that are grouped as alike, held against a comparison of everything that two events could differ in."""

import pytest
from support.traced import full_trace, model_of, opened

from haaw.tracing.alike import alike


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

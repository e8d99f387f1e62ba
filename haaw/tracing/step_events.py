"""The rows of a step's events: which columns stay from step to step, and which follow the tables of a segment."""

from collections.abc import Sequence
from itertools import chain
from types import CodeType
from typing import Any

import numpy as np

from haaw.ops.recorder import Scope
from haaw.tracing.distinct import Distinct
from haaw.tracing.noting import Notes
from haaw.tracing.schema import EVENT, NONE, OPERATION
from haaw.tracing.segment import Table, encoded
from haaw.tracing.sites import site_entry
from haaw.tracing.step_arguments import Given, StepArguments, exact
from haaw.tracing.step_bindings import StepBindings
from haaw.tracing.step_scopes import StepScopes


class StepEvents:
    """The events of a step, one of each operation."""

    def __init__(
        self,
        names: Sequence[int],
        called: Sequence[tuple[CodeType, int]],
        scopes: Sequence[Scope],
        places: StepScopes,
        arguments: StepArguments,
        bindings: StepBindings,
    ) -> None:
        self._places, self._arguments = places, arguments
        codes = {id(code): code for code, _ in called}
        sites = Distinct((id(code), at) for code, at in called)
        self._site, self._sites = sites.which, [(codes[code], at) for code, at in sites.values]
        self._site_table = Table()
        for code, at in self._sites:
            self._site_table.number((id(code), at), encoded(site_entry(code, at)))
        self._rows = rows = np.zeros(len(names), dtype=EVENT)
        self._written: list[Any] = [(None, None)] * len(arguments.groups)
        """Of each group of arguments, what they were, and how they are written."""
        self._numbered: Any = None  # with which numbers of tables the rows are filled in
        rows["kind"], rows["name"] = OPERATION, names
        for name in ("sequence", "layer", "head"):
            rows[name] = [NONE if (number := getattr(scope, name)) is None else number for scope in scopes]
        links, outputs = bindings.link_counts, bindings.output_counts
        rows["links"], rows["outputs"] = links, outputs
        self._first_links, self._first_outputs = np.cumsum(links) - links, np.cumsum(outputs) - outputs

    def rows(self, given: Given, notes: Notes) -> np.ndarray:
        """The rows without times, step and request, until they are asked for again."""
        segment = notes.segment
        stages = [segment.stages.number(stage, stage or "") for stage in self._places.stages.values]
        parts = [segment.parts.number(part, part or "") for part in self._places.parts.values]
        if segment.sites.entries:
            sites = [notes.site_number(code, at) for code, at in self._sites]
        else:
            segment.sites.begin_like(self._site_table)
            sites = list(range(len(self._sites)))
        arguments = [0]
        for group, (op, slots, places) in enumerate(self._arguments.groups):
            values = list(map(given.value, places))
            before, written = self._written[group]
            if before is None or not all(map(_is_written_alike, values, before)):
                written = notes.written_arguments(
                    op, tuple(chain.from_iterable(zip(slots, values, strict=True)))
                )
                self._written[group] = values, written
            arguments.append(segment.args.number(*written))
        rows, numbered = self._rows, (stages, parts, sites, arguments)
        if numbered != self._numbered:
            self._numbered = None  # an interrupt may come
            rows["stage"] = np.array(stages)[self._places.stages.which]
            rows["part"] = np.array(parts)[self._places.parts.which]
            rows["site"] = np.array(sites)[self._site]
            rows["args"] = np.array(arguments)[self._arguments.group]
            self._numbered = numbered
        rows["first_link"] = self._first_links + segment.links.count
        rows["first_output"] = self._first_outputs + segment.outputs.count
        return rows


def _is_written_alike(one: Any, other: Any) -> bool:
    return one is other or bool(exact(one) == exact(other))

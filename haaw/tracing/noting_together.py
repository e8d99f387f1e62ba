"""Notes the operations of a step that repeats an earlier one at once, as the plans of the recording tell."""

from collections.abc import Container
from operator import itemgetter

import numpy as np

from haaw.tracing.buffers import NO_LAYOUT, Owners
from haaw.tracing.held import OP, SCOPE, Batch
from haaw.tracing.keeping import Keeping
from haaw.tracing.noting import Notes
from haaw.tracing.schema import NOT_IN_A_LIST
from haaw.tracing.sink import Sink
from haaw.tracing.step_plan import LEAST_OPERATIONS, StepPlan, StepRows

MOST_PLANS = 16
"""So many lengths of steps are remembered: each kind of request has its own."""


class NotingTogether:
    """The plans of one recording, and what comes of them in its notes."""

    def __init__(self, notes: Notes, sink: Sink, keeping: Keeping) -> None:
        self._notes, self._sink, self._keeping = notes, sink, keeping
        self._plans: dict[int, StepPlan] = {}  # by the number of operations in a batch
        self._slow_turns: dict[int, int] = {}  # batches of that length that no plan fitted, since one did

    def note(self, batch: Batch, owners: Owners) -> int:
        """Notes the operations that repeat an earlier batch, at once; gives how many."""
        plan = self._plans.get(len(batch))
        if plan is None:
            return 0
        notes = self._notes
        rows = plan.match(batch, notes)
        if rows is None:
            return 0
        events = notes.segment.events
        done = events.count + plan.length
        try:
            self._take(plan, rows, batch, owners)
            events.count = done  # an interrupt before it leaves everything to be noted one by one
            if self._keeping.keeps_results or self._keeping.keeps_roots:
                self._keep(plan, rows, batch, done - plan.length)
        except BaseException:
            if events.count != done:
                notes.buffers.held.clear()
                owners.clear()
                notes.buffers.versions.counts[plan.bindings.cache_places] = rows.versions
            elif self._keeping.keeps_results or self._keeping.keeps_roots:
                # Else others that write to the same cache could not be computed again.
                self._keep(plan, rows, batch, done - plan.length, notes.segment.kept_slots)
            raise
        self._slow_turns[len(batch)] = 0
        return plan.length

    def _take(self, plan: StepPlan, rows: StepRows, batch: Batch, owners: Owners) -> None:
        """Takes over everything but the events' count."""
        notes = self._notes
        segment, buffers = notes.segment, notes.buffers
        segment.events.write(rows.events)
        segment.links.extend(rows.links)
        segment.outputs.extend(rows.outputs)
        numbers = range(buffers.next_number, buffers.next_number + len(rows.owners))
        buffers.next_number = numbers.stop
        owners.extend((rows.owners, numbers))
        if plan.length < len(batch):
            layouts = np.where(plan.results.is_owner, rows.layouts, NO_LAYOUT).tolist()
            buffers.held.update(zip(map(id, rows.owners), zip(numbers, layouts, strict=True), strict=True))
        buffers.versions.counts[plan.bindings.cache_places] = rows.versions + plan.bindings.write_counts

    def _keep(
        self, plan: StepPlan, rows: StepRows, batch: Batch, first_event: int, kept: Container[object] = ()
    ) -> None:
        """Keeps what is to be kept, but for those events and slots that are `kept`."""
        layouts, links = rows.layouts.tolist(), rows.links["layout"].tolist()
        keeping, segment = self._keeping, self._notes.segment
        ops, scopes = batch.column(OP, plan.length), batch.column(SCOPE, plan.length)
        roots = [(*root, True) for root in plan.bindings.roots]
        made = enumerate(zip(plan.results.events.tolist(), plan.results.slots, strict=True))
        results = (
            [(event, slot, place, False) for place, (event, slot) in made] if keeping.keeps_results else []
        )
        for event, slot, place, is_root in sorted(roots + results, key=itemgetter(0)):
            if is_root:
                keeps, layout = keeping.keeps_roots, links[plan.bindings.link_row[place]]
                values = rows.given.value(place)
            else:
                keeps = keeping.keeps(ops[event].name, scopes[event])
                layout, values = layouts[place], rows.made[place]
            if keeps and (first_event + event, slot) not in kept:
                keeping.keep(segment, self._sink, first_event + event, slot, NOT_IN_A_LIST, layout, values)

    def learn(self, batch: Batch) -> None:
        """Plans for the next batch like this one: when the second comes, and ever more seldom if none fits."""
        turns = self._slow_turns[len(batch)] = self._slow_turns.get(len(batch), 0) + 1
        if len(batch) < LEAST_OPERATIONS or turns & (turns - 1):
            return
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
            self._slow_turns.clear()
        if turns > 1 or len(batch) in self._plans:
            self._plans[len(batch)] = StepPlan(batch, self._notes)

    def clear(self) -> None:
        """Forgets the plans."""
        self._plans.clear()

"""What a replay finds out about one operation, and how a whole replay is summed up."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

IDENTICAL = "identical"
IDENTICAL_HASH = "identical hash, value not kept"
WITHIN_BUDGET = "within budget, environment differs"
MISMATCH = "MISMATCH"
INPUTS_DIFFER = "inputs differ, not judged"
HASH_DIFFERS = "hash differs, value not kept, environment differs"
NOTHING_TO_COMPARE = "nothing of its own to compare"
NO_WEIGHTS = "not checked: the weights are not at hand"
NOT_KEPT = "not checked: what it starts from was not kept"
NOT_HERE = "not checked: this HAAW has no such operation"
NOT_COMPUTED = "not checked: what it starts from could not be computed here"

MOST_SHOWN = 10
"""Wrong ones that a report names in plain text."""

SAME = (IDENTICAL, IDENTICAL_HASH)
FAULTS = (MISMATCH,)


@dataclass(frozen=True)
class Judged:
    """The verdict on one event. `detail` says more where there is more, such as the first element that differs."""

    event: int
    path: str
    op: str
    stage: str
    verdict: str
    detail: str = ""

    def __str__(self) -> str:
        more = f" – {self.detail}" if self.detail else ""
        return f"{self.verdict}: {self.path} ({self.op}, event {self.event}){more}"


class ReplayReport(Sequence[Judged]):
    """All verdicts of a replay. `ok` is True where nothing was found wrong."""

    def __init__(self, judged: Sequence[Judged], notes: Sequence[str] = ()) -> None:
        self._judged = tuple(judged)
        self.notes = tuple(notes)

    def __len__(self) -> int:
        return len(self._judged)

    def __getitem__(self, index: Any) -> Any:
        return self._judged[index]

    def __iter__(self) -> Iterator[Judged]:
        return iter(self._judged)

    @property
    def counts(self) -> dict[str, int]:
        """How often each verdict was given, the commonest first."""
        return dict(Counter(each.verdict for each in self._judged).most_common())

    @property
    def ok(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.faults

    @property
    def faults(self) -> list[Judged]:
        """Operations that did not give what the trace says, though their inputs were the same."""
        return [each for each in self._judged if each.verdict in FAULTS]

    @property
    def identical_share(self) -> float:
        """The share of identical results, 0 to 1, among all with a value of their own; not checked is not identical."""
        own = [each for each in self._judged if each.verdict != NOTHING_TO_COMPARE]
        return sum(each.verdict in SAME for each in own) / len(own) if own else 1.0

    def __str__(self) -> str:
        lines = [f"{count:>8,}  {verdict}" for verdict, count in self.counts.items()]
        own = len(self) - self.counts.get(NOTHING_TO_COMPARE, 0)
        said = (
            f"{100 * self.identical_share:.4g} % of the results identical" if own else "no result to compare"
        )
        if own and all(
            each.verdict.startswith("not checked")
            for each in self._judged
            if each.verdict != NOTHING_TO_COMPARE
        ):
            said = 'nothing could be checked; record with keep="replayable" or "full", and give the model'
        lines.append(f"{len(self):>8,}  events; {said}")
        lines += [f"note: {note}" for note in self.notes]
        lines += [str(each) for each in self.faults[:MOST_SHOWN]]
        if len(self.faults) > MOST_SHOWN:
            lines.append(f"… {len(self.faults) - MOST_SHOWN:,} more")
        return "\n".join(lines)

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """For JSON: counts, notes, and everything that is not identical."""
        return {
            "events": len(self),
            "counts": self.counts,
            "identical_share": self.identical_share,
            "ok": self.ok,
            "notes": list(self.notes),
            "faults": [vars(each) for each in self.faults],
        }

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{count:,}</td><td>{escape(verdict)}</td></tr>" for verdict, count in self.counts.items()
        )
        faults = "".join(f"<li>{escape(str(each))}</li>" for each in self.faults[:20])
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return (
            f"<table><caption>replay: {100 * self.identical_share:.4g} % identical</caption>{rows}</table>{notes}"
            f"{'<ol>' + faults + '</ol>' if faults else ''}"
        )

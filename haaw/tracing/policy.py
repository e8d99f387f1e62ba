"""What a trace keeps: a level for the whole run, rules for single operations, layers, heads and steps, a byte budget.

In words, also on a command line: `replayable; full: op=softmax layer=3 step=5-8; budget=50MB`. Decides and counts;
stores nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from haaw.errors import BadInputError
from haaw.ops.op import OPS
from haaw.tracing.budget import LEVELS, Level, size_in_bytes
from haaw.tracing.names_near import nearest
from haaw.tracing.rules import Rule, parse_rule

DEFAULT: Level = "replayable"
MOST_RULES = 100

Part = str | Rule
_Key = tuple[str, str | None, int | None, int | None, str | None]


class Keep:
    """A level, rules (the last one that fits decides), and a budget in bytes or None.

    `events` keeps no values, `replayable` what cannot be derived (every other value can then be computed
    again), `full` the results of every operation. A rule `full: …` keeps the results of the operations that
    fit; a rule `replayable: …` takes some out of a `full` run.
    """

    def __init__(
        self, level: Level = DEFAULT, rules: Sequence[Rule] = (), budget_bytes: int | None = None
    ) -> None:
        if level not in LEVELS:
            raise BadInputError(_unknown_level(level))
        if len(rules) > MOST_RULES:
            raise BadInputError(
                f"there are {len(rules)} rules of what to keep; at most {MOST_RULES} are taken"
            )
        self.level: Level = level
        self.rules = tuple(rules)
        self.budget_bytes = budget_bytes
        self._memo: dict[_Key, bool | list[Rule]] = {}

    @classmethod
    def parse(
        cls, keep: "Keep | Part | Sequence[Part] | None" = None, *, budget: str | int | None = None
    ) -> Self:
        """A policy from words, rules, or a list of both; `budget` such as "50MB" goes before one in the words.

        Errors: `BadInputError` for what is not understood, with the nearest name that is.
        """
        if isinstance(keep, Keep):
            return cls(keep.level, keep.rules, keep.budget_bytes if budget is None else size_in_bytes(budget))
        levels: list[Level] = []
        rules: list[Rule] = []
        for part in _parts(keep):
            if isinstance(part, Rule):
                rules.append(part)
            elif part.partition("=")[0].strip() == "budget":
                budget = part.partition("=")[2].strip() if budget is None else budget
            elif ":" in part or "=" in part:
                rules.append(parse_rule(part))
            elif part in LEVELS:
                levels.append(part)
            else:
                raise BadInputError(_unknown_level(part))
        if len(levels) > 1:
            raise BadInputError(
                f"what to keep names several levels, {' and '.join(levels)}; name one, and rules behind it"
            )
        level = levels[0] if levels else DEFAULT
        return cls(level, rules, None if budget is None else size_in_bytes(budget))

    @property
    def has_rules(self) -> bool:
        """Whether single operations are told apart."""
        return bool(self.rules)

    @property
    def keeps_roots(self) -> bool:
        """Whether what cannot be derived is kept: token ids, random numbers, rows that a cache takes in."""
        return self.level != "events"

    def decide(
        self,
        op: str,
        stage: str | None,
        step: int | None,
        layer: int | None,
        head: int | None,
        part: str | None = None,
    ) -> bool:
        """Whether the results of an operation are kept. Runs once an operation, so places are looked up once."""
        if not self.rules:
            return self.level == "full"
        key = (op, stage, layer, head, part)
        known = self._memo.get(key)
        if known is None:
            known = self._memo[key] = self._decided(key)
        if known is True or known is False:
            return known
        for rule in known:  # the last first
            if rule.fits_step(step):
                return rule.level == "full"
        return self.level == "full"

    def _decided(self, key: _Key) -> bool | list[Rule]:
        """What holds in a place at every step; or, where steps matter, the rules to try, the last first."""
        rules: list[Rule] = []
        for rule in reversed(self.rules):
            if not rule.fits_place(*key):
                continue
            if rule.step is None and not rules:
                return rule.level == "full"
            rules.append(rule)
            if rule.step is None:
                break
        return rules or self.level == "full"

    def lowered(self, level: Level) -> "Keep":
        """The policy of a recording that has fallen to a lower level: below `full` no rule keeps anything."""
        if LEVELS.index(level) >= LEVELS.index(self.level) and level != "events":
            return self
        return Keep(level, (), self.budget_bytes)

    def check_model(self, *, layers: int, heads: int) -> None:
        """Errors: `BadInputError` for a rule about a layer or a head that the model does not have."""
        for rule in self.rules:
            rule.check_model(layers=layers, heads=heads)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `Keep.from_dict` reads it back."""
        return {"level": self.level, "rules": list(map(str, self.rules)), "budget_bytes": self.budget_bytes}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The policy that a manifest states, also one that names operations which are no more."""
        rules = [parse_rule(text, names="any") for text in values.get("rules", ())]
        return cls(values["level"], rules, values.get("budget_bytes"))

    def __str__(self) -> str:
        budget = () if self.budget_bytes is None else (f"budget={self.budget_bytes}",)
        return "; ".join([self.level, *map(str, self.rules), *budget])

    def __repr__(self) -> str:
        return f"<Keep {self}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keep) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


def rule_that_would_keep(
    op: str,
    *,
    stage: str | None = None,
    step: int | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> str:
    """The rule that would have kept the results of an operation in a place, in the words that `keep` takes."""
    return str(Rule(op=op, stage=stage, step=step, layer=layer, head=head, names="any"))


def _parts(keep: Any) -> Iterable[Part]:
    if keep is None:
        return []
    if isinstance(keep, Rule):
        return [keep]
    if isinstance(keep, str):
        return [part for part in map(str.strip, keep.replace("\n", ";").split(";")) if part]
    if isinstance(keep, Mapping | bytes) or not isinstance(keep, Iterable):
        raise BadInputError(
            f'keep is {keep!r:.60}; it must be a text such as "replayable", or a list of texts and rules'
        )
    parts: list[Part] = []
    for each in keep:
        if not isinstance(each, str | Rule):
            raise BadInputError(f"keep holds {each!r:.60}; it may hold texts and rules")
        parts.extend(_parts(each))
    return parts


def _unknown_level(level: object) -> str:
    known = [*LEVELS, "budget=SIZE", "full: RULE"]
    rule = f'; a rule is written as "full: op={level}"' if level in OPS else ""
    return f"keep names {level!r:.60}; known: {', '.join(known)}{nearest(level, LEVELS)}{rule}"

"""What a trace keeps: words and rules mean one thing, places are found, a budget falls visibly, sizes add up."""

import itertools
import random
from typing import Any

import pytest

from haaw.errors import BadInputError
from haaw.ops.op import OPS
from haaw.tracing.budget import Budget, size_in_bytes
from haaw.tracing.estimate import Estimate, OutputBytes, RunCounts, estimate, in_words, step_groups
from haaw.tracing.policy import Keep, rule_that_would_keep
from haaw.tracing.rules import Rule, parse_rule
from haaw.tracing.schema import EVENT


def kept(keep: Keep, op: str = "softmax", **place: Any) -> bool:
    where = {"stage": "decode", "step": 5, "layer": 3, "head": None, "part": "attention"} | place
    return keep.decide(op, **where)


# --- words


@pytest.mark.parametrize(
    ("words", "level", "rules", "budget"),
    [
        (None, "replayable", [], None),
        ("", "replayable", [], None),
        ("events", "events", [], None),
        ("full", "full", [], None),
        ("full: op=softmax", "replayable", ["full: op=softmax"], None),
        ("op=softmax", "replayable", ["full: op=softmax"], None),
        (
            "events; full: op=softmax,linear layer=3,7-9 step=5-; budget=50MB",
            "events",
            ["full: op=softmax,linear step=5- layer=3,7-9"],
            50_000_000,
        ),
        (
            ["full", "replayable: op=linear stage=prefill"],
            "full",
            ["replayable: op=linear stage=prefill"],
            None,
        ),
        ("  replayable ;\n full:layer=0 ; ", "replayable", ["full: layer=0"], None),
        ("full: head=0-2 part=attention", "replayable", ["full: head=0-2 part=attention"], None),
    ],
)
def test_words_say_level_rules_and_budget(
    words: Any, level: str, rules: list[str], budget: int | None
) -> None:
    keep = Keep.parse(words)
    assert (keep.level, list(map(str, keep.rules)), keep.budget_bytes) == (level, rules, budget)
    assert Keep.parse(str(keep)) == keep
    assert Keep.from_dict(keep.to_dict()) == keep
    assert Keep.parse(keep) == keep


def test_rules_as_objects_mean_what_their_words_mean() -> None:
    by_hand = Rule(op=["softmax", "linear"], layer=3, step=range(5, 9), stage="decode", head=[0, 2])
    assert str(by_hand) == "full: op=softmax,linear stage=decode step=5-8 layer=3 head=0,2"
    assert parse_rule(str(by_hand)) == by_hand
    assert Keep.parse(["events", by_hand]) == Keep.parse(f"events; {by_hand}")
    assert Keep.parse(by_hand).rules == (by_hand,)
    assert Rule(step=range(0, 10, 3)) == parse_rule("step=0,3,6,9")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ful", 'did you mean "full"'),
        ("replay", 'did you mean "replayable"'),
        ("softmax", '"full: op=softmax"'),
        ("full: op=sofmax", 'did you mean "softmax"'),
        ("full: op=kv_apend", 'did you mean "kv_append"'),
        ("full: op=nonsense", "there are: "),
        ("full: stage=decod", 'did you mean "decode"'),
        ("full: lyer=3", 'did you mean "layer"'),
        ("full: layer 3", "NAME=VALUE"),
        ("full: layer= 3", "NAME=VALUE"),
        ("full: layer=3 layer=4", "layer=1,2"),
        ("full:", "at least one of"),
        ("full: layer=-1", "whole number from 0"),
        ("full: step=8-5", "write 5-8"),
        ("full: step=5-8-9", "a range such as"),
        ("full: step=1e3", "whole number"),
        ("full: step=" + "9" * 5000, "whole number"),
        ("full: layer=٣", "whole number"),
        ("events; full", "several levels"),
        ("events: op=softmax", "whole runs"),
        ("fll: op=softmax", 'did you mean "full"'),
        ("budget=5 apples", "50MB"),
        ("budget=0", "at least one byte"),
        ("budget=nan", "50MB"),
        (7, "a text such as"),
        ({"full": 1}, "a text such as"),
        (["full", 7], "texts and rules"),
        (["layer=1"] * 101, "at most 100"),
    ],
)
def test_what_is_not_understood_is_refused_with_what_was_meant(words: Any, said: str) -> None:
    with pytest.raises(BadInputError) as caught:
        Keep.parse(words)
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert len(message) < 1_500


@pytest.mark.parametrize(
    "fields",
    [
        {"layer": True},
        {"layer": 1.5},
        {"layer": []},
        {"layer": range(5, 5)},
        {"op": 3},
        {"op": []},
        {"step": {}},
    ],
)
def test_rules_with_impossible_places_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        Rule(**fields)


def test_a_policy_from_a_manifest_may_name_operations_that_are_no_more() -> None:
    keep = Keep.from_dict({"level": "full", "rules": ["full: op=of_another_version"], "budget_bytes": None})
    assert str(keep) == "full; full: op=of_another_version"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("50MB", 50 * 10**6),
        ("1.5GB", 15 * 10**8),
        ("2 KiB", 2048),
        ("1gib", 2**30),
        ("3k", 3000),
        ("7", 7),
        (4096, 4096),
        (".5MB", 500_000),
    ],
)
def test_sizes_are_read(text: str | int, expected: int) -> None:
    assert size_in_bytes(text) == expected


# --- deciding


def test_levels_without_rules_keep_all_or_nothing() -> None:
    assert [kept(Keep.parse(level)) for level in ("events", "replayable", "full")] == [False, False, True]


def by_definition(keep: Keep, op: str, place: dict[str, Any]) -> bool:
    """The last rule whose every field fits, written out."""
    level = keep.level
    for rule in keep.rules:
        fits = rule.op is None or op in rule.op
        fits &= rule.stage is None or place["stage"] in rule.stage
        fits &= rule.part is None or place["part"] in rule.part
        for name in ("layer", "step"):
            ranges, value = getattr(rule, name), place[name]
            fits &= ranges is None or (
                value is not None
                and any(value >= low and value <= (10**9 if high is None else high) for low, high in ranges)
            )
        if rule.head is not None:
            joint = place["head"] is None and op in ("softmax", "attention_scores")
            alone = place["head"] is not None and any(low <= place["head"] <= high for low, high in rule.head)
            fits &= joint or alone
        if fits:
            level = rule.level
    return level == "full"


def test_the_last_rule_that_fits_decides_whatever_was_asked_before(seed: int) -> None:
    """Answers are remembered, and must not be those of another place."""
    ops = ["softmax", "linear", "rms_norm", "attention_scores"]
    assert set(ops) <= set(OPS)
    assert all("H" in OPS[name].out[0].rpartition("_")[2] for name in ("softmax", "attention_scores"))
    random_ = random.Random(seed)

    def ranges(most: int) -> str:
        low = random_.randrange(most)
        return (
            random_.choice([f"{low}", f"{low}-{low + 2}", f"{low}-", f"{low},{low + 3}"])
            if most > 2
            else f"{low}"
        )

    decided = set()
    for _ in range(60):
        rules = []
        for _ in range(random_.randint(1, 4)):
            fields = {"op": random_.choice(ops), "layer": ranges(4), "step": ranges(6), "head": ranges(2)}
            fields |= {
                "stage": random_.choice(["prefill", "decode"]),
                "part": random_.choice(["attention", "mlp"]),
            }
            chosen = random_.sample(sorted(fields), random_.randint(1, 3))
            rules.append(
                Rule(random_.choice(["full", "replayable"]), **{name: fields[name] for name in chosen})
            )
        keep = Keep(random_.choice(["events", "replayable", "full"]), rules)
        places = itertools.product(
            ops, ["prefill", "decode"], [None, 0, 3, 7], [None, 0, 2], [None, 0, 1], ["attention", None]
        )
        for op, stage, step, layer, head, part in random_.sample(list(places), 200):
            place = {"stage": stage, "step": step, "layer": layer, "head": head, "part": part}
            answer = keep.decide(op, **place)
            assert answer == by_definition(keep, op, place), (keep, op, place)
            decided.add(answer)
    assert decided == {True, False}


def test_a_rule_for_one_head_keeps_joint_attention_whole_and_nothing_without_heads() -> None:
    keep = Keep.parse("full: head=2")
    assert kept(keep, head=2)
    assert not kept(keep, head=1)
    assert kept(keep, head=None)  # softmax over all heads holds head 2
    assert not kept(keep, op="linear", head=None)


def test_a_layer_or_head_that_the_model_does_not_have_is_refused() -> None:
    keep = Keep.parse("full: layer=3-7 head=2")
    keep.check_model(layers=8, heads=3)
    with pytest.raises(BadInputError, match="layer 7; this model has the layers 0 to 6"):
        keep.check_model(layers=7, heads=3)
    with pytest.raises(BadInputError, match="head 2"):
        keep.check_model(layers=8, heads=2)
    Keep.parse("full: layer=3-").check_model(layers=4, heads=1)


def test_a_missing_value_names_the_rule_that_would_have_kept_it() -> None:
    words = rule_that_would_keep("softmax", stage="decode", step=5, layer=3)
    assert words == "full: op=softmax stage=decode step=5 layer=3"
    assert not kept(Keep.parse("replayable"))
    assert kept(Keep.parse(["replayable", words]))
    assert rule_that_would_keep("op_of_a_newer_version", head=0) == "full: op=op_of_a_newer_version head=0"


# --- budget


def test_a_budget_falls_from_full_to_replayable_to_events_to_nothing() -> None:
    """Half is left for what is cheaper, a quarter for events alone."""
    budget = Budget(1_000, "full")
    falls = [
        (spent, fact["now"]) for spent in range(100, 1_500, 100) if (fact := budget.spend(100)) is not None
    ]
    assert falls == [(600, "replayable"), (800, "events"), (1_100, "nothing")]
    assert (budget.level, budget.spent_bytes) == (None, 1_400)


def test_a_fall_says_all_that_a_reader_needs() -> None:
    budget = Budget(1_000, "full")
    assert budget.spend(10) is None
    assert budget.spend(890) == {"before": "full", "now": "events", "spent_bytes": 900, "budget_bytes": 1_000}
    assert budget.level == "events"


def test_a_known_rest_is_left_over_and_no_more() -> None:
    budget = Budget(1_000, "full")
    budget.expect(replayable_bytes=100, events_bytes=50)
    assert budget.spend(900) is None
    assert budget.spend(1) is not None
    assert budget.level == "replayable"
    assert budget.spend(49) is None
    assert budget.spend(1) is not None
    assert budget.level == "events"


def test_without_a_budget_nothing_falls() -> None:
    budget = Budget(None, "full")
    assert budget.spend(10**15) is None
    assert budget.level == "full"


def test_a_lowered_policy_keeps_no_results() -> None:
    keep = Keep.parse("full; full: op=softmax; budget=5MB")
    assert [str(keep.lowered(level)) for level in ("full", "replayable", "events")] == [
        str(keep),
        "replayable; budget=5000000",
        "events; budget=5000000",
    ]
    assert Keep.parse("events; full: op=softmax").lowered("events") == Keep.parse("events")


# --- estimate

COUNTS = RunCounts(
    prompt_tokens=10,
    chunk_tokens=4,
    max_tokens=6,
    events_per_prefill_step=100,
    events_per_decode_step=50,
    kv_bytes_per_position=64,
    outputs=[
        OutputBytes("linear", per_token=8, layer=0),
        OutputBytes("softmax", per_token_and_position=2, layer=0),
        OutputBytes("softmax", per_token_and_position=2, layer=1),
        OutputBytes("greedy", once=16),
    ],
)


def added_up(keep: Keep) -> float:
    """The results of COUNTS, token by token: chunks of 4, 4 and 2 tokens that see 4, 8 and 10 positions, then five
    decode steps that see 11 to 15."""
    steps = [("prefill", 0, 4, 4), ("prefill", 1, 4, 8), ("prefill", 2, 2, 10)]
    steps += [("decode", step, 1, 10 + step) for step in range(1, 6)]
    total = 0.0
    for stage, step, tokens, positions in steps:
        for each in COUNTS.outputs:
            if keep.decide(each.op, stage, step, each.layer, None):
                total += (
                    each.once + each.per_token * tokens + each.per_token_and_position * tokens * positions
                )
    return total


@pytest.mark.parametrize(
    "words",
    [
        "events",
        "replayable",
        "full",
        "full: op=softmax layer=1 step=2-3",
        "full: step=1-",
        "full: stage=decode step=4,100-200",
        "full; replayable: op=softmax step=0-2",
        "events; full: op=linear",
    ],
)
def test_results_are_estimated_as_they_add_up_token_by_token(words: str) -> None:
    keep = Keep.parse(words)
    estimated = estimate(COUNTS, keep)
    assert estimated.result_bytes == added_up(keep)
    assert (estimated.root_bytes >= 15 * 64) == (
        keep.level != "events"
    )  # ten prompt tokens and five decode steps
    events = 3 * 100 + 5 * 50
    assert estimated.event_bytes > events * EVENT.itemsize
    assert estimated.total_bytes == estimated.whole_bytes


def test_the_steps_of_a_run_are_all_counted_once() -> None:
    keep = Keep.parse(["full: step=1", "full: step=3-4", "full: step=2-"])
    groups = list(step_groups(COUNTS, keep))
    assert sum(group.steps for group in groups if group.stage == "prefill") == 3
    assert sum(group.tokens for group in groups) == 10 + 5
    assert [(g.example, g.steps) for g in groups if g.stage == "decode"] == [(1, 1), (2, 1), (3, 2), (5, 1)]


def test_a_run_without_new_tokens_has_no_decode_steps() -> None:
    counts = RunCounts(3, 512, 0, 10, 10, 64)
    assert [group.stage for group in step_groups(counts, Keep.parse("full"))] == ["prefill"]


def test_an_estimate_reads_as_a_sentence_and_says_what_a_budget_cuts() -> None:
    said = str(Estimate(2_000_000, 0, 31_400_000, 0, budget_bytes=5_000_000))
    assert said.startswith("about 33.4 MB (events 2 MB, results 31.4 MB); the budget of 5 MB will be reached")
    assert "end early" not in said
    assert Estimate(2, 0, 4, 0, budget_bytes=5).total_bytes == 5
    said = str(Estimate(2_000_000, 0, 0, 500_000, budget_bytes=1_000_000))
    assert "less than the events alone take (2.5 MB), so the trace will end early" in said
    assert [in_words(n) for n in (0, 999, 1_000, 2.5e9, 3e15)] == [
        "0 bytes",
        "999 bytes",
        "1 kB",
        "2.5 GB",
        "3,000 TB",
    ]

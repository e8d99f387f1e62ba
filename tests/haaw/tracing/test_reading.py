"""Tables, trees, provenance and views of a trace, held against independent formulas and the answer that was given."""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.tiny_models import NumberText, tiny_gpt2, tiny_language_model, tiny_llama
from support.trace_files import flipped, recorded, with_manifest

import haaw
from haaw.caches.sliding import SlidingCache
from haaw.errors import BadInputError
from haaw.generation.language_model import LanguageModel
from haaw.models.pack import pack_tokens
from haaw.ops.activations import swiglu
from haaw.ops.linear import add, linear
from haaw.ops.op import OPS, op
from haaw.ops.recorder import declare, emit, recording, scope
from haaw.tracing.container import TraceDamagedError
from haaw.tracing.costs import itemsize
from haaw.tracing.trace import Trace

PROMPT = "Once upon a time there was a little"
DRAW = {"temperature": 0.9, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1, "seed": 1}


@pytest.fixture(scope="module")
def model():
    return haaw.load()


@pytest.fixture(scope="module")
def run(tmp_path_factory, model):
    """A trace of a drawn answer in two prefill chunks, and the answer."""
    path = tmp_path_factory.mktemp("traces") / "run.haaw"
    answer = recorded(path, model, PROMPT, "replayable", max_tokens=6, prefill_chunk_tokens=5, **DRAW)
    return path, answer


@pytest.fixture
def trace(run, model):
    return haaw.open_trace(run[0], model)


@pytest.fixture
def answer(run):
    return run[1]


# The table of events.


def test_the_table_says_what_each_event_says(trace):
    table = trace.events
    assert len(table) == len(trace)
    for event, row in zip(trace, table, strict=True):
        place = event.place
        assert (row["number"], row["kind"], row["name"]) == (event.number, event.kind, event.name)
        assert (row["stage"], row["part"]) == (place.stage, place.part)
        for name in ("request", "step", "sequence", "layer", "head"):
            assert row[name] == (-1 if getattr(place, name) is None else getattr(place, name))
        assert row["value"] == ", ".join(output.name for output in event.outputs)
        assert row["shape"] == " ".join(str(o.window.layout.shape).replace(",)", ")") for o in event.outputs)
        assert row["took_ns"] == event.took_ns
        assert row["site"] == (f"{event.file}:{event.line}" if event.line else "")


def test_the_table_becomes_a_pandas_table_where_what_does_not_apply_is_missing(trace):
    pytest.importorskip("pandas", reason="needs pandas (extra `export`)")
    frame = trace.to_pandas()
    assert len(frame) == len(trace)
    assert frame["layer"].isna().sum() == (trace.events["layer"] == -1).sum() > 0
    by_layer = frame[frame.kind == "operation"].groupby("layer")["took_ns"].sum()
    for layer, took_ns in by_layer.items():
        rows = (trace.events["layer"] == layer) & (trace.events["kind"] == "operation")
        assert took_ns == pytest.approx(trace.events["took_ns"][rows].sum())


def test_the_table_of_a_trace_cannot_be_changed(trace):
    with pytest.raises(ValueError, match="read-only"):
        trace.events["step"][0] = 3
    assert type(trace.events["step"]) is np.ndarray
    assert "<table" in trace.events._repr_html_()


# Operations against a formula that is written down here once more.


def products_of_llama(config, tokens: int, before: int, blocks: list[int]) -> int:
    queries, keys = config.query_heads * config.head_dim, config.kv_heads * config.head_dim
    attention = sum(
        2 * 2 * queries * own * (before + seen) for own, seen in zip(blocks, np.cumsum(blocks), strict=True)
    )
    weights = (
        config.width * (queries + 2 * keys) + queries * config.width + 3 * config.width * config.mlp_width
    )
    return config.layers * (2 * tokens * weights + attention) + 2 * config.width * config.vocabulary_size


def products_of_gpt2(config, tokens: int, before: int, blocks: list[int]) -> int:
    attention = sum(
        2 * 2 * config.width * own * (before + seen)
        for own, seen in zip(blocks, np.cumsum(blocks), strict=True)
    )
    weights = 4 * config.width**2 + 2 * config.width * config.mlp_width
    return config.layers * (2 * tokens * weights + attention) + 2 * config.width * config.vocabulary_size


@pytest.mark.parametrize("heads", ["together", "separate"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_matrix_products_add_up_to_the_formula_for_the_config(tmp_path, family, heads):
    """150 tokens of prefill: a chunk of 140 in two blocks of 70, one of 10; then three decode steps."""
    if family == "llama":
        transformer, formula, prompt = tiny_llama(4, context_length_tokens=400), products_of_llama, 150
        chunks = [(140, [70, 70]), (10, [10])]
    else:
        transformer, formula, prompt = tiny_gpt2(4), products_of_gpt2, 60
        chunks = [(60, [60])]
    model = LanguageModel("random", transformer, NumberText())
    prompt_ids = np.random.default_rng(1).integers(0, 64, prompt).tolist()
    recorded(tmp_path / "t.haaw", model, prompt_ids, max_tokens=4, prefill_chunk_tokens=140, heads=heads)
    trace = Trace(tmp_path / "t.haaw")
    table = trace.events
    products = np.isin(table["name"], ["linear", "attention_scores", "attention_mix"])
    steps = [("prefill", number, *chunk) for number, chunk in enumerate(chunks)]
    steps += [("decode", number, 1, [1]) for number in (1, 2, 3)]
    before = 0
    for stage, step, tokens, blocks in steps:
        rows = products & (table["stage"] == stage) & (table["step"] == step)
        expected = formula(transformer.config, tokens, before, blocks)
        assert table["operations"][rows].sum() == expected, (stage, step)
        before += tokens


def test_phases_take_the_time_of_the_clock_and_hold_every_operation(trace, answer):
    phases, table = trace.phases(), trace.events
    assert [phase.name for phase in phases] == [
        "start-up",
        "prepare",
        "queue",
        "prefill",
        "decode",
        "deliver",
    ]
    for phase in phases[1:]:
        assert phase.took_s == pytest.approx(answer.timing_s[phase.name])
        assert phase.timed_by == "clock"
    assert sum(phase.operations for phase in phases) == table["operations"].sum()
    assert sum(phase.bytes for phase in phases) == table["bytes"].sum()
    assert sum(phase.events for phase in phases) == len(trace)
    decode = phases["decode"]
    assert decode.operations_per_byte == decode.operations / decode.bytes
    assert 0.3 < decode.operations_per_byte < 0.7  # a multiply-add for four bytes of weights
    assert phases["start-up"].took_s > 0
    with pytest.raises(KeyError, match="prefill"):
        phases["encode"]
    assert "<table" in phases._repr_html_()


def test_bytes_of_a_product_are_its_arguments_and_its_result(trace):
    """`decode 1`, layer 0, `x · weightᵀ`: (1 × 192 + 512 × 192 + 1 × 512) float32."""
    event = trace.value("decode 1/layer 0/attention.query_key_value").event
    cost = trace.reading.costs.of(event)
    assert cost == (2 * 192 * 512, 4 * (192 + 512 * 192 + 512))
    assert cost == (trace.events["operations"][event.number], trace.events["bytes"][event.number])
    append = trace.value("decode 1/layer 0/attention.kv_append#1").event
    assert trace.reading.costs.of(append) == (0, 2 * 1 * 2 * 64 * 4)  # a row of two heads read and written
    embed = trace.value("decode 1/embedding.x").event
    assert trace.reading.costs.of(embed) == (0, 2 * 192 * 4)


def test_codes_and_ids_do_not_set_the_width_of_what_is_moved():
    codes, ids, numbers = np.zeros(3, np.uint8), np.zeros(3, np.int64), np.zeros(3, np.float32)
    assert itemsize([codes, ids, numbers]) == 4
    assert itemsize([ids]) == 8


# The tree.


def test_the_tree_holds_every_event_once(trace):
    root = trace.tree()
    assert root.events == len(trace)
    assert root.operations == (trace.events["kind"] == "operation").sum()

    def check(node):
        if node.children:
            assert node.events == sum(child.events for child in node)
            assert node.took_ns == pytest.approx(sum(child.took_ns for child in node))
            for child in node:
                check(child)

    check(root)
    layer = root["decode"]["decode 2"]["layer 1"]
    assert set(layer.children) == {"attention", "mlp"}
    assert layer["attention"]["softmax"].events == 1
    assert root["prefill"]["prefill 1"]["layer 1"]["attention"]["softmax"].operations == 1
    with pytest.raises(KeyError, match="layer 0"):
        root["decode"]["decode 2"]["layer 9"]


def test_the_tree_shows_itself_as_text_and_html(trace):
    root = trace.tree()
    assert "decode 3" in str(root)
    assert "softmax" not in str(root)
    assert "softmax" in "\n".join(root["decode"]["decode 1"].lines(9))
    assert root._repr_html_().count("<details") > 20
    assert json.loads(json.dumps(root.to_dict()))["events"] == len(trace)


def test_each_place_of_the_tree_has_the_events_that_the_table_has_there(trace):
    placed = Counter(
        tuple(
            filter(None, [
                row["stage"],
                f"{row['stage']} {row['step']}" if row["step"] >= 0 else "",
                *(f"{name} {row[name]}" for name in ("sequence", "layer", "head") if row[name] >= 0),
                row["part"],
                row["name"],
            ])
        )
        for row in trace.events
    )  # fmt: skip

    def leaves(node, way=()):
        for label, child in node.children.items():
            yield from leaves(child, (*way, label)) if len(child) else [((*way, label), child.events)]

    assert Counter(dict(leaves(trace.tree()))) == placed
    assert list(trace.tree().children) == list(dict.fromkeys(trace.events["stage"].tolist()))


def test_a_part_that_is_called_like_an_operation_beside_it_is_one_place_of_the_tree(tmp_path):
    one = np.ones((1, 2), dtype=np.float32)
    with haaw.record(tmp_path / "t.haaw") as made:
        made.recorder.know_weights({"norm": one})
        with recording(made.recorder, stage="decode"):
            add(one, one)
            with scope(part="add"):
                add(one, one)
                linear(one, one)
            add(one, one)
    place = Trace(tmp_path / "t.haaw").tree()["decode"]["add"]
    assert place.operations == 4
    assert [(child.label, child.operations) for child in place if child.operations] == [
        ("add", 1),
        ("linear", 1),
    ]


def test_places_of_one_label_are_one_and_in_the_order_in_which_they_were_met(tmp_path):
    one = np.ones((1, 2), dtype=np.float32)
    with haaw.record(tmp_path / "t.haaw") as made:
        made.recorder.know_weights({"norm": one})
        with recording(made.recorder, stage="decode"):
            for place, ran in (
                ({"layer": 0}, add), ({"part": "layer 0"}, linear), ({"layer": 0}, swiglu), ({"part": "layer 0"}, add),
            ):  # fmt: skip
                with scope(**place):
                    ran(one, one)
    place = Trace(tmp_path / "t.haaw").tree()["decode"]["layer 0"]
    assert [(child.label, child.events) for child in place] == [("add", 2), ("linear", 1), ("swiglu", 1)]


def test_the_tree_of_several_requests_begins_with_them(tmp_path):
    model = tiny_language_model(3)
    with haaw.record(tmp_path / "t.haaw", keep="events"):
        for prompt in ([1, 2], [3]):
            model.generate(prompt, max_tokens=2)
    with Trace(tmp_path / "t.haaw") as trace:
        root = trace.tree()
        assert list(root.children) == ["start-up", "request 1", "request 2"]
        for number in (1, 2):
            assert root[f"request {number}"].events == (trace.events["request"] == number).sum()
            assert root[f"request {number}"]["decode"]["decode 1"]["layer 0"].operations > 5


def test_steps_are_told_apart_within_a_segment(tmp_path):
    """As many events as a segment takes belong to steps that follow one another, and not each to one of its own."""
    one = np.ones((1, 2), dtype=np.float32)
    with haaw.record(tmp_path / "t.haaw") as made:
        made.recorder.know_weights({"norm": one})
        with recording(made.recorder, stage="decode", request=1):
            for place in (
                {"step": 1},
                {"step": 2},
                {"step": 2, "request": 2},
                {"stage": "prefill", "step": 2},
            ):
                with scope(**place):
                    add(one, one)
                    add(one, one)
    with Trace(tmp_path / "t.haaw") as trace:
        steps = [(step.request, step.name, step.end - step.first) for step in trace.steps()][-4:]
    assert steps == [(1, "decode 1", 2), (1, "decode 2", 2), (2, "decode 2", 2), (1, "prefill 2", 2)]


def test_an_operation_on_texts_has_its_row(tmp_path):
    words = np.array([["hello world", "z"]])

    @op(out="y_TD", card=add.op.card)
    def upper_case(x_TD):
        return np.char.upper(x_TD)

    try:
        with haaw.record(tmp_path / "t.haaw") as made:
            made.recorder.know_weights({"norm": np.ones(1, dtype=np.float32)})
            with recording(made.recorder, stage="decode"):
                upper_case(declare("x", words))
        row = Trace(tmp_path / "t.haaw").events[-1]
    finally:
        del OPS["upper_case"]
    assert (row["name"], row["operations"], row["bytes"], row["shape"]) == ("upper_case", 2, 176, "(1, 2)")


@pytest.fixture(scope="module")
def long_tree(tmp_path_factory):
    path = tmp_path_factory.mktemp("long") / "long.haaw"
    recorded(path, tiny_language_model(3), [1, 2], "events", max_tokens=60)
    return Trace(path).tree()


def test_of_many_places_the_tree_prints_the_first_and_the_last(long_tree):
    lines = [line.strip() for line in long_tree["decode"].lines(1)]
    assert len(lines) == 1 + 20 + 1
    assert lines[1].startswith("decode 1 ")
    assert lines[-2] == "… 39 more"
    assert lines[-1].startswith("decode 59 ")


def test_the_page_of_a_long_tree_stays_short(long_tree, monkeypatch):
    whole = long_tree.html()
    assert "… 39 more" in whole
    assert "decode 59" in whole
    assert "decode 20 " not in whole
    monkeypatch.setattr("haaw.tracing.tree.MOST_IN_HTML", 60)
    short = long_tree.html()
    places = short.count("<details") + short.count("<div")
    assert 60 <= places < 60 + 25  # the place that is opened last may have twenty in it
    assert "decode 59" in short
    assert " …</div>" in short
    assert len(short) < len(whole) / 4


# Where things come from.


def test_producers_and_users_agree_on_random_walks(trace, rng):
    """From the last scores backwards: each producer names the event among its users, until a weight or an input."""
    ends = set()
    for _ in range(25):
        event = trace.value("decode 5/output.logits").event
        for _ in range(500):
            links = trace.producers(event)
            if not len(links):
                ends.add(event.kind)
                break
            computed = [link for link in links if link.weight is None]
            assert all(link.weight in trace.manifest["weights"] for link in links if link not in computed)
            if not computed:
                ends.add("weight")
                break
            link = computed[rng.integers(len(computed))]
            assert link.event.number < event.number
            assert event.number in [user.event.number for user in trace.users(link.event)]
            user = next(user for user in trace.users(link.event) if user.event.number == event.number)
            assert link.parameter in user.parameters
            event = link.event
        else:
            pytest.fail("a walk backwards did not end")
    assert "input" in ends
    assert ends <= {"input", "weight"}


def test_users_are_all_events_that_read_it(trace):
    """Counted anew, by going through every link of the trace."""
    for path in (
        "decode 2/embedding.cosine",
        "decode 2/layer 0/mlp.x",
        "decode 2/layer 1/attention.kv_append#2",
    ):
        made = trace.value(path)
        window = made.event.outputs[made.output].window
        readers = [
            event.number
            for event in trace
            if any(
                (link.window.buffer, link.window.version) == (window.buffer, window.version)
                for link in event.inputs
            )
        ]
        assert [user.event.number for user in trace.users(path)] == readers
        assert readers


def test_one_of_two_results_has_users_of_its_own(trace):
    cosine, sine = (trace.users(f"decode 2/embedding.{name}") for name in ("cosine", "sine"))
    assert [user.parameters for user in cosine] == [("cosine_TR",)] * 6
    assert [user.parameters for user in sine] == [("sine_TR",)] * 6
    paths = [link.path for link in trace.producers("decode 2/layer 3/attention.rotated")]
    assert paths == [
        f"decode 2/{name}"
        for name in ("layer 3/attention.query_key_value", "embedding.cosine", "embedding.sine")
    ]


def test_a_view_of_a_cache_comes_from_the_chain_of_all_its_writes(trace):
    """`decode 3` sees 9 prompt tokens and 3 more: reserved, two chunks, three single rows."""
    (keys,) = [
        link for link in trace.producers("decode 3/layer 1/attention.scores") if link.parameter == "keys_KSC"
    ]
    assert [event.name for event in keys.chain] == ["kv_allocate"] + ["kv_append"] * 5
    rows = [event.inputs[1].window.layout.shape[0] for event in keys.chain[1:]]
    assert rows == [5, 4, 1, 1, 1]
    assert sum(rows) == keys.window.layout.shape[1]
    assert keys.event.place.step == 3
    assert "5 writes" in repr(trace.producers("decode 3/layer 1/attention.scores"))


def test_inputs_and_facts_have_no_producers(trace):
    assert len(trace.producers("decode 1/ids")) == 0
    assert len(trace.producers(0)) == 0
    assert "none" in repr(trace.users(0))
    with pytest.raises(BadInputError, match="there is no event"):
        trace.users(10**6)


# Attention, caches, choices, text.


def test_attention_has_the_tokens_as_labels_and_rows_that_add_up_to_one(trace):
    pattern = trace.attention("decode 3", layer=1)
    assert pattern.weights_HTS.shape == (4, 1, 12)
    np.testing.assert_allclose(pattern.weights_HTS.sum(axis=-1), 1, rtol=1e-5)
    tokens = trace.tokens()
    assert pattern.keys == tuple(token.label for token in tokens[:12])
    assert pattern.keys[:2] == ("'<s>'", "'Once'")
    assert (pattern.queries, pattern.query_positions) == ((tokens[11].label,), (11,))
    assert pattern.path == "decode 3/layer 1/attention.weights"
    one = trace.attention(3, 1, head=2)
    assert one.heads == (2,)
    np.testing.assert_array_equal(one.weights_HTS[0], pattern.head(2))
    assert pattern.strongest(3)[0][2] == pytest.approx(pattern.weights_HTS.mean(axis=0)[0].max())
    assert "<table" in pattern._repr_html_()


@pytest.mark.parametrize("heads", ["together", "separate"])
def test_blocks_of_a_prefill_are_joined_to_one_triangle(tmp_path, heads):
    """300 tokens are three blocks of 100; held against softmax(q·k/√C) in float64 on all of them at once."""
    model = tiny_language_model(5, context_length_tokens=400)
    ids = np.random.default_rng(2).integers(0, 64, 300).tolist()
    recorded(tmp_path / "t.haaw", model, ids, "full", max_tokens=1, heads=heads)
    trace = haaw.open_trace(tmp_path / "t.haaw", model)
    pattern = trace.attention("prefill 0", layer=1)
    assert pattern.weights_HTS.shape == (4, 300, 300)
    rotated_THC = trace.value("prefill 0/layer 1/attention.rotated").array.astype(np.float64)
    query_HTC, key_KTC = rotated_THC[:, :4].transpose(1, 0, 2), rotated_THC[:, 4:].transpose(1, 0, 2)
    scores_HTS = query_HTC @ key_KTC.repeat(2, axis=0).transpose(0, 2, 1) / math.sqrt(6)
    scores_HTS[:, np.triu_indices(300, 1)[0], np.triu_indices(300, 1)[1]] = -np.inf
    weights_HTS = np.exp(scores_HTS - scores_HTS.max(axis=-1, keepdims=True))
    weights_HTS /= weights_HTS.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(pattern.weights_HTS, weights_HTS, atol=2e-6)
    assert not pattern.weights_HTS[:, np.triu_indices(300, 1)[0], np.triu_indices(300, 1)[1]].any()
    assert trace.attention("prefill 0", 1, head=3).heads == (3,)
    np.testing.assert_array_equal(trace.attention("prefill 0", 1, head=3).head(3), pattern.head(3))


CACHES = {
    "dynamic": {},
    "static": {},
    "paged": {"cache_options": {"block_size": 4}},
    "offloaded": {},
    "concatenated": {},
    "sliding": {"cache_options": {"window": 6, "sinks": 2}},
}


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("heads", ["together", "separate"])
def test_a_cache_holds_the_keys_and_values_of_the_positions_that_it_names(tmp_path, kind, heads):
    """Each row is the rotated key (or the value) that its position's step computed; a window forgets the others."""
    model = tiny_language_model(6)
    settings = {"max_tokens": 12, "prefill_chunk_tokens": 4, "cache": kind, "heads": heads, **CACHES[kind]}
    recorded(tmp_path / "t.haaw", model, [3, 1, 4, 1, 5, 9], "replayable", **settings)
    trace = haaw.open_trace(tmp_path / "t.haaw", model)
    keys, values = [], []
    for step in [*trace.steps("prefill"), *trace.steps("decode")]:
        rotated_THC = trace.value(f"{step.name}/layer 1/attention.rotated").array
        whole_TZ = trace.value(f"{step.name}/layer 1/attention.query_key_value").array
        keys.extend(rotated_THC[:, 4:])
        values.extend(whole_TZ.reshape(len(whole_TZ), -1, 6)[:, 6:])
        contents = trace.cache(step, 1)
        assert contents.keys_KSC.shape == contents.values_KSC.shape == (2, len(contents.positions), 6)
        for row, position in enumerate(contents.positions):
            np.testing.assert_array_equal(contents.keys_KSC[:, row], keys[position])
            np.testing.assert_array_equal(contents.values_KSC[:, row], values[position])
        last = len(keys) - 1
        visible = (
            {p for p in range(last + 1) if p > last - 6 or p < 2}
            if kind == "sliding"
            else set(range(last + 1))
        )
        assert visible <= set(contents.positions)
        assert contents.useful_bytes == 2 * contents.keys_KSC.nbytes
        assert contents.allocated_bytes >= contents.useful_bytes
        pattern = trace.attention(step, 1)
        assert pattern.query_positions == tuple(range(last + 1 - step_tokens(trace, step), last + 1))
        np.testing.assert_allclose(pattern.weights_HTS.sum(axis=-1), 1, rtol=1e-5)
        seen = {
            p
            for p, column in zip(pattern.key_positions, pattern.weights_HTS[0, -1], strict=True)
            if column > 0
        }
        assert seen == visible


def step_tokens(trace, step) -> int:
    return len(trace.value(f"{step.name}/ids").array)


def test_blocks_of_a_window_stand_at_their_own_positions(tmp_path):
    """300 tokens in blocks of 100, each of which looks at the last 50 positions."""
    model = tiny_language_model(5, context_length_tokens=400)
    ids = np.random.default_rng(2).integers(0, 64, 300).tolist()
    options = {"window": 50}
    recorded(tmp_path / "t.haaw", model, ids, max_tokens=2, cache="sliding", cache_options=options)
    trace = haaw.open_trace(tmp_path / "t.haaw", model)
    pattern = trace.attention("prefill 0", layer=1)
    query, key = np.indices((300, 300))
    visible = (key <= query) & (key > query - 50)
    assert pattern.key_positions == tuple(range(300))
    np.testing.assert_array_equal(pattern.weights_HTS[0] > 0, visible)
    assert trace.attention("decode 1", 1).key_positions == tuple(range(251, 301))


def test_sequences_of_one_pack_are_told_apart(tmp_path):
    """Two sequences in one step, each in a ring of its own: the second one's rows begin in the middle of the pack."""
    model = tiny_llama(7)
    with haaw.record(tmp_path / "t.haaw", keep="full") as made:
        with recording(made.recorder, stage="prefill", step=0, request=1):
            made.recorder.know_weights(model.named_weights())
            emit("settings", asked={"cache": "sliding"})
            layout, prototype_Z = model.cache_layout, model.prototype_Z
            caches = [SlidingCache(layout, prototype_Z, context_length_tokens=128, window=4) for _ in "ab"]
        for step, tokens in enumerate(([[1, 2, 3, 4, 5, 6, 7], [8, 9]], [[1, 1], [2]], [[3], [4, 5, 6]])):
            with recording(made.recorder, stage="decode", step=step + 1, request=1):
                pack = pack_tokens(list(zip(tokens, caches, strict=True)), model.prototype_Z)
                model.forward(pack)
                pack.commit()
    trace = Trace(tmp_path / "t.haaw", weights=model.named_weights)
    with pytest.raises(BadInputError, match="several sequences; say which with sequence="):
        trace.attention("decode 1", 0)
    held = [trace.cache("decode 3", 1, sequence=number) for number in (0, 1)]
    assert set(held[0].positions) == {6, 7, 8, 9}
    assert {2, 3, 4, 5} <= set(held[1].positions)
    for number, last in ((0, 9), (1, 5)):
        pattern = trace.attention("decode 3", 1, sequence=number)
        seen = {
            p
            for p, column in zip(pattern.key_positions, pattern.weights_HTS[0, -1], strict=True)
            if column > 0
        }
        assert seen == {last - 3, last - 2, last - 1, last}


def test_a_cache_says_what_it_takes(trace):
    """2 key/value heads of 64 channels, keys and values, float32: 1,024 bytes a position; 64 are reserved."""
    contents = trace.cache("decode 3", layer=0)
    assert (contents.useful_bytes, contents.allocated_bytes) == (12 * 1024, 64 * 1024)
    assert contents.labels[1] == "'Once'"
    assert "useful 12.3 kB, allocated 65.5 kB" in str(contents)
    assert "<table" in contents._repr_html_()


def test_the_scores_of_a_greedy_step_are_highest_at_the_token_it_chose(tmp_path, model):
    answer = recorded(tmp_path / "t.haaw", model, PROMPT, max_tokens=5)
    trace = haaw.open_trace(tmp_path / "t.haaw", model)
    for step, token_id in enumerate(answer.token_ids):
        logits = trace.logits(step)
        assert int(logits.array[-1].argmax()) == token_id
        choice = trace.candidates(step)
        assert (choice.how, choice.chosen.id, choice.chosen.bytes) == (
            "greedy",
            token_id,
            answer.token_bytes[step],
        )
        assert choice.candidates[0] == choice.chosen
        exact = np.exp(logits.array[-1].astype(np.float64))
        assert choice.chosen.probability == pytest.approx(exact[token_id] / exact.sum())


def test_a_draw_shows_every_filter_and_lies_where_its_random_number_points(trace, answer):
    for step, token_id in enumerate(answer.token_ids):
        choice = trace.candidates(step)
        names = [stage.name for stage in choice.stages]
        assert names == [
            "scores",
            "repetition_penalty",
            "temper",
            "candidates",
            "keep_top_k",
            "keep_top_p",
            "keep_min_p",
        ]
        left = [stage.left for stage in choice.stages]
        assert left == sorted(left, reverse=True)
        assert left[4] == 30
        assert choice.chosen.id == token_id
        assert choice.chosen.dropped_by is None
        last = choice.stages[-1]
        assert last.probabilities_N.sum() == pytest.approx(1)
        at = last.ids_N.tolist().index(token_id)
        below = last.probabilities_N[:at].sum()
        assert below - 1e-6 <= choice.uniform <= below + last.probabilities_N[at] + 1e-6
        (fact,) = [each.facts for each in trace.facts("drawn") if each.facts["step"] == step]
        assert (fact["token_id"], fact["uniform"]) == (token_id, choice.uniform)
        dropped = [each for each in choice.candidates if each.dropped_by]
        assert all(each.id not in last.ids_N for each in dropped)
        assert all(each.bytes is not None for each in choice.candidates)
        assert "<table" in choice._repr_html_()


def test_a_step_that_chose_nothing_says_so(trace):
    with pytest.raises(BadInputError, match="prefill 0 chose no token"):
        trace.candidates("prefill 0")
    with pytest.raises(BadInputError, match="prefill may be"):
        trace.candidates("prefill")
    with pytest.raises(BadInputError, match="prepare has no attention"):
        trace.attention("prepare", 0)
    with pytest.raises(BadInputError, match="no layer 7; it has the layers 0 to 5"):
        trace.attention(1, 7)
    with pytest.raises(BadInputError, match="no head 9"):
        trace.attention(1, 0, head=9)
    with pytest.raises(BadInputError, match="a step is None"):
        trace.logits(None)


@pytest.mark.parametrize(
    ("prompt", "settings"),
    [
        (PROMPT, {"max_tokens": 8, "prefill_chunk_tokens": 3}),
        (PROMPT, {"max_tokens": 12, "stop": ["and", " n"]}),
        (PROMPT, {"max_tokens": 30, "temperature": 1.5, "seed": 4, "stop": ["zzz", "e "]}),
        ("Zażółć gęślą jaźń 🙂", {"max_tokens": 12, "temperature": 2.0, "seed": 2}),
    ],
)
def test_the_text_after_each_step_is_what_stood_on_the_screen(tmp_path, model, prompt, settings):
    with haaw.record(tmp_path / "t.haaw"):
        request = model.request(prompt, **settings)
        shown, screen = "", []
        for delta in request:
            shown += delta.text
            screen.append((len(request.token_ids), shown))
    answer, trace = request.answer, Trace(tmp_path / "t.haaw")
    assert trace.text() == answer.text == shown
    for step in range(len(answer.token_ids)):
        assert trace.text(step) == next(text for tokens, text in screen if tokens == step + 1)
    assert trace.text("prepare") == ""
    tokens = trace.tokens()
    assert tokens.ids == [*answer.prompt_ids, *answer.token_ids]
    assert [token.bytes for token in tokens if token.source == "answer"] == list(answer.token_bytes)
    for token in tokens:
        text = prompt if token.source == "prompt" else answer.text
        assert token.start is None or token.text == text[token.start : token.end]
    assert [token.position for token in tokens] == list(range(len(tokens)))
    assert "<table" in tokens._repr_html_()


def test_what_a_stranger_wrote_is_escaped_wherever_it_is_shown(tmp_path, model):
    evil = "<script>alert(1)</script>\x1b[2J"
    recorded(tmp_path / "t.haaw", model, evil, max_tokens=2)
    trace = haaw.open_trace(tmp_path / "t.haaw", model)
    shown = [
        trace,
        trace.tokens(),
        trace.attention(1, 0),
        trace.cache(1, 0),
        trace.candidates(1),
        trace.tree(),
        trace.events,
    ]
    for each in shown:
        assert "<script>" not in each._repr_html_()
    from haaw.tracing.trace_display import info_text

    for text in (info_text(trace), repr(trace.tokens()), str(trace.cache(1, 0))):
        assert "\x1b" not in text


# Opening.


def test_a_trace_in_a_notebook_shows_model_prompt_answer_and_phases(trace, answer):
    html = trace._repr_html_()
    for part in ("tiny (llama)", PROMPT, answer.text, "prefill", "replayable", "trace.value"):
        assert part in html


def test_the_model_is_loaded_when_a_value_needs_it_and_not_before(run, monkeypatch):
    from haaw.loading import traces

    loaded = []
    plain = traces.load
    monkeypatch.setattr(
        traces, "load", lambda name, **options: (loaded.append(name), plain(name, **options))[1]
    )
    trace = haaw.open_trace(run[0])
    trace.phases(), trace.tree(), trace.text(), trace.value("decode 1/ids")
    assert loaded == []
    assert trace.value("decode 1/output.logits").hash_verdict == "identical"
    trace.candidates(1)
    assert loaded == ["tiny"]


def test_another_model_is_refused_by_the_first_weight_that_differs(run, tmp_path):
    other = tiny_language_model(1)
    trace = haaw.open_trace(run[0], other)
    with pytest.raises(
        BadInputError, match=r'another model than "random": the weight embedding has the shape \[64, 24\]'
    ):
        trace.weights()
    recorded(tmp_path / "t.haaw", tiny_language_model(2), [1, 2, 3], max_tokens=2)
    with pytest.raises(BadInputError, match="the weight embedding has other values"):
        haaw.open_trace(tmp_path / "t.haaw", other).weights()
    trace = haaw.open_trace(tmp_path / "t.haaw")
    with pytest.raises(BadInputError, match=r'the model "random" of this trace cannot be loaded .*model='):
        trace.weights()
    assert trace.candidates  # what needs no weights goes on
    assert trace.text() != ""


def test_what_is_no_model_is_refused_at_once(run):
    with pytest.raises(BadInputError, match="model is 3; it is a loaded model, a name or a path"):
        haaw.open_trace(run[0], 3)


def test_a_trace_of_a_newer_schema_or_none_is_refused(run, tmp_path):
    newer = with_manifest(
        run[0], tmp_path / "newer.haaw", lambda manifest: manifest.update(schema=99, haaw="9.1")
    )
    with pytest.raises(
        BadInputError, match=r"made by HAAW 9.1 and has the schema 99; this HAAW reads up to 1"
    ):
        haaw.open_trace(newer)
    empty = with_manifest(run[0], tmp_path / "empty.haaw", lambda manifest: manifest.pop("schema"))
    with pytest.raises(TraceDamagedError, match="states no schema"):
        haaw.open_trace(empty)


def test_every_flipped_bit_is_found_and_its_member_named(run, tmp_path, rng):
    """In each member, in a random byte; a trace of one step more would take as long for each."""
    members = list(Trace(run[0]).container.members)
    for member in [members[0], *rng.choice(members[1:], 12, replace=False).tolist()]:
        size = Trace(run[0]).container.members[member].size
        damaged = flipped(run[0], tmp_path / "damaged.haaw", member, int(rng.integers(size)))
        try:
            findings = [finding.where for finding in Trace(damaged).verify()]
        except TraceDamagedError as error:
            findings = [member] if member in str(error) else []
        assert member in findings, member


def test_a_sound_trace_has_no_findings_whole_or_cut(trace, run, tmp_path):
    assert trace.verify() == []
    cut = tmp_path / "cut.haaw"
    cut.write_bytes(run[0].read_bytes()[:-4000])
    assert not Trace(cut).complete
    assert Trace(cut).verify() == []
    assert [phase.timed_by for phase in Trace(cut).phases()][1:] == ["events"] * 5


def test_a_trace_is_read_while_it_grows(tmp_path, model):
    path = tmp_path / "growing.haaw"
    with haaw.record(path):
        model.generate(PROMPT, max_tokens=3)
        trace = haaw.open_trace(path, model)
        assert not trace.complete
        events, text = len(trace.events), trace.text()
        first = trace.value("decode 1/output.logits").array
        model.generate("Ben had a", max_tokens=2)
        assert trace.refresh() > 0
        assert len(trace.events) > events
        assert trace.text(request=1) == text
        assert trace.text(request=2)
        assert trace.value("request 1/decode 1/output.logits").array.tobytes() == first.tobytes()
        assert trace.value("request 2/decode 1/output.logits").hash_verdict == "identical"
        with pytest.raises(BadInputError, match="has the requests 1 to 2; say which"):
            trace.text()


def test_reading_imports_no_model_code_and_no_pandas():
    """A trace can be looked at without what made it; `haaw.tracing` knows operations and caches alone."""
    for file in Path(haaw.__file__).parent.joinpath("tracing").glob("*.py"):
        text = file.read_text()
        for package in ("models", "generation", "loading", "cli", "view"):
            assert f"from haaw.{package}" not in text, (file.name, package)

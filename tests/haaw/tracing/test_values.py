"""`trace.value`: names, the way from the file or by computing again, the check against the hash, what cannot be had."""

import re
from pathlib import Path

import numpy as np
import pytest
from support.tiny_models import tiny_language_model
from support.trace_files import recorded, rewritten, with_manifest

import haaw
from haaw.errors import BadInputError
from haaw.tracing.container import TraceDamagedError
from haaw.tracing.outputs import named_outputs
from haaw.tracing.paths import ValuePath, parse_path
from haaw.tracing.rerun import Rerun
from haaw.tracing.trace import Trace
from haaw.tracing.values import ValueNotKeptError

PROMPT = "Once upon a time there was a little"
RUN = {"max_tokens": 5, "prefill_chunk_tokens": 5}


@pytest.fixture(scope="module")
def model():
    return haaw.load()


@pytest.fixture(scope="module")
def files(tmp_path_factory, model) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("traces")
    for keep in ("full", "replayable", "events"):
        recorded(folder / f"{keep}.haaw", model, PROMPT, keep, **RUN)
    drawn = {
        **RUN,
        "temperature": 0.9,
        "top_k": 30,
        "top_p": 0.9,
        "min_p": 0.01,
        "seed": 1,
        "heads": "separate",
    }
    for keep in ("full", "replayable"):
        recorded(folder / f"drawn-{keep}.haaw", model, PROMPT, keep, **drawn)
    return {path.stem: path for path in folder.glob("*.haaw")}


@pytest.fixture
def full(files):
    return Trace(files["full"])


@pytest.fixture
def replayable(files, model):
    return haaw.open_trace(files["replayable"], model)


@pytest.mark.parametrize("run", ["", "drawn-"])
@pytest.mark.parametrize("step", ["prefill 0", "prefill 1", "decode 1", "decode 4"])
def test_every_value_that_is_computed_again_is_bit_for_bit_the_recorded_one(files, model, run, step):
    full, again = Trace(files[f"{run}full"]), haaw.open_trace(files[f"{run}replayable"], model)
    (found,) = [each for each in full.steps() if each.name == step]
    sources = set()
    for named in named_outputs(full, found):
        kept, made = full.value(named.path), again.value(named.path)
        assert kept.array.tobytes() == made.array.tobytes(), named.path
        assert (kept.shape, kept.axes, kept.array.dtype) == (made.shape, made.axes, made.array.dtype)
        if not named.event.name.startswith("kv_"):  # a whole buffer is made from its history
            assert (kept.source, kept.hash_verdict, made.hash_verdict) == (
                "recorded",
                "identical",
                "identical",
            )
        sources.add(made.source)
    assert sources == {"recorded", "recomputed"}


def test_a_value_has_the_names_axes_and_event_that_ran(replayable):
    value = replayable.value("decode 3/layer 2/attention.weights")
    assert (value.path, value.axes, value.shape) == ("decode 3/layer 2/attention.weights", "HTS", (4, 1, 12))
    assert (value.event.name, value.event.place.layer, value.event.place.step) == ("softmax", 2, 3)
    assert value.event.file == "haaw/models/attention.py"
    np.testing.assert_allclose(value.array.sum(axis=-1), 1, rtol=1e-6)


def test_a_head_is_a_slice_of_the_axis_h_where_heads_ran_together(replayable):
    whole = replayable.value("decode 3/layer 2/attention.weights")
    one = replayable.value("decode 3/layer 2/attention.weights", head=2)
    assert (one.axes, one.head) == ("TS", 2)
    np.testing.assert_array_equal(one.array, whole.array[2])
    np.testing.assert_array_equal(
        replayable.value("decode 3/layer 2/head 2/attention.weights").array, one.array
    )


def test_a_head_is_an_event_of_its_own_where_heads_ran_one_by_one(files):
    trace = Trace(files["drawn-full"])
    one = trace.value("decode 3/layer 2/attention.weights", head=2)
    assert one.path == "decode 3/layer 2/head 2/attention.weights"
    assert (one.event.place.head, one.axes, one.shape[0]) == (2, "HTS", 1)
    with pytest.raises(BadInputError, match=r"head 0.*head 3.*choose a head with head="):
        trace.value("decode 3/layer 2/attention.weights")
    with pytest.raises(BadInputError, match="has no head 4; it has the heads 0 to 3"):
        trace.value("decode 3/layer 2/attention.weights", head=4)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        (
            "decode 5/layer 3/attention.weights",
            (None, "decode", 5, None, 3, None, "attention", "weights", None),
        ),
        ("request 2/prefill 0/sequence 1/layer 0/head 4/mlp.x#2", (2, "prefill", 0, 1, 0, 4, "mlp", "x", 2)),
        (" prefill/output.logits ", (None, "prefill", None, None, None, None, "output", "logits", None)),
        ("decode 1/key positions", (None, "decode", 1, None, None, None, None, "key positions", None)),
        ("weights", (None, None, None, None, None, None, None, "weights", None)),
    ],
)
def test_a_path_is_taken_apart(text, parsed):
    assert parse_path(text) == ValuePath(*parsed)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a path is ''"),
        ("decode 1//x", "is no part of a path"),
        ("decode 1/layer/x", 'needs one number behind "layer"'),
        ("decode 1/prefill 0/x", "names two stages"),
        ("decode 1/layer 0/layer 1/x", "needs one number"),
        ("decode 1/x#0", "a number from 1 on"),
        ("decode 1/x#ab", "a number from 1 on"),
        ("decode 1/attention.", "names no value"),
        ("decode 1/layer 0/", "names no value"),
        ("decode 1/layer -1/x", "is no part of a path"),
        ("dekode 1/x", 'no stage "dekode"; did you mean "decode"'),
        ("decode 99/x", "no decode 99; it has decode 1 to 4"),
        ("request 7/decode 1/x", "no request 7; it has request 1"),
        ("decode 1/layer 0/attention.wieghts", 'did you mean "decode 1/layer 0/attention.weights"'),
        ("decode 1/layer 9/attention.weights", "there is no value"),
        ("start-up/journey", "has no values at all, only facts"),
        ("decode 1", 'is a place and no value; values in it are such as "decode 1/ids"'),
        ("decode 1/layer 3", 'is a place and no value; .* "decode 1/layer 3/attention.normed"'),
        ("nonsense", 'in this trace; there are such as "prefill 0/ids"'),
        ("decode 1/attention.weights", "may be .*layer 0.*layer 3.*say which"),
        ("decode/layer 0/attention.weights", "may be .*decode 1.*decode 4"),
        ("decode 1/layer 0/attention.kv_append", r"is there twice: #1 \(kv_append .*dynamic.py:\d+\), #2"),
        ("decode 1/layer 0/attention.kv_append#3", "no .*kv_append#3; this name is there twice"),
        ("decode 1/layer 0/x", 'may be .*attention.x", .*mlp.x"'),
    ],
)  # fmt: skip
def test_a_path_that_is_none_or_several_is_refused_in_a_sentence(replayable, text, said):
    with pytest.raises(BadInputError, match=said):
        replayable.value(text)


@pytest.mark.parametrize("what", [None, 3.5, True, b"decode 1", ["decode 1"]])
def test_what_is_no_path_is_refused(replayable, what):
    with pytest.raises((BadInputError, TypeError)):
        replayable.value(what)
    with pytest.raises(BadInputError, match="head is"):
        replayable.value("decode 1/layer 0/attention.weights", head=-1)
    with pytest.raises(BadInputError, match="has no heads: its axes are TD"):
        replayable.value("decode 1/layer 0/attention.normed", head=0)


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ("decode 1/layer 0/weights", "decode 1/layer 0/attention.weights"),
        ("decode 1/layer 0/attention.softmax", "decode 1/layer 0/attention.weights"),  # by the operation
        ("decode 1/logits", "decode 1/output.logits"),
        ("decode 1/layer 0/mlp.activated#1", "decode 1/layer 0/mlp.activated"),
    ],
)
def test_what_is_left_out_of_a_path_is_found_where_only_one_fits(replayable, short, whole):
    assert replayable.value(short).path == whole


def test_events_and_their_numbers_stand_for_their_first_output(replayable):
    value = replayable.value("decode 2/layer 1/attention.kv_append#2")
    assert replayable.value(value.event.number).path == value.path
    assert replayable.value(value.event).path == replayable.value(value).path == value.path
    with pytest.raises(BadInputError, match="has no value"):
        replayable.value(0)


def test_a_value_that_was_not_kept_names_the_rule_and_the_rule_keeps_it(files, model, tmp_path):
    path = "decode 2/layer 3/attention.weights"
    with pytest.raises(ValueNotKeptError, match="this trace keeps events") as caught:
        haaw.open_trace(files["events"], model).value(path)
    (rule,) = re.findall(r'keep="(full: [^"]+)"', str(caught.value))
    assert rule == "full: op=softmax stage=decode step=2 layer=3"
    recorded(tmp_path / "ruled.haaw", model, PROMPT, ["events", rule], **RUN)
    ruled = Trace(tmp_path / "ruled.haaw")
    assert ruled.value(path).source == "recorded"
    with pytest.raises(ValueNotKeptError, match="layer=2"):
        ruled.value("decode 2/layer 2/attention.weights")


def test_without_the_model_it_is_said_that_weights_are_missing(files):
    with pytest.raises(ValueNotKeptError, match=r'weights of the model "tiny".*model='):
        Trace(files["replayable"]).value("decode 2/layer 3/attention.weights")


def test_a_value_that_comes_out_otherwise_is_said_loudly(files, model):
    def changed():
        weights = dict(model.transformer.named_weights())
        weights["layers.0.attention.norm"] = weights["layers.0.attention.norm"] * np.float32(1.0001)
        return weights

    trace = Trace(files["replayable"], weights=changed)
    with pytest.warns(UserWarning, match="is not bit for bit what ran then"):
        value = trace.value("decode 2/layer 0/attention.normed")
    assert value.hash_verdict == "differs"
    assert "its hash is NOT the recorded one" in str(value)


def test_kept_values_that_were_altered_are_refused_by_their_path(files, tmp_path):
    """Whoever alters a value and mends the checksum still does not have its hash."""
    path = "decode 2/layer 3/attention.weights"
    segment, _ = Trace(files["full"]).segment_of(Trace(files["full"]).value(path).event.number)
    row = Trace(files["full"]).value(path).event.number - segment.first_event
    _, _, at, _ = segment.kept[row, -1, 0xFFFF]
    name = f"s{segment.number:06d}/arena.npy"

    def altered(content: bytes) -> bytes:
        start = len(content) - len(segment.arena) + at
        return content[:start] + bytes([content[start] ^ 1]) + content[start + 1 :]

    trace = Trace(rewritten(files["full"], tmp_path / "altered.haaw", {name: altered}))
    with pytest.raises(TraceDamagedError, match=f"{path} in altered.haaw.*altered"):
        trace.value(path)
    assert [finding.where for finding in trace.verify()] == [path]
    assert trace.value("decode 2/layer 2/attention.weights").hash_verdict == "identical"


def test_without_hashes_it_is_said_that_nothing_was_checked(model, tmp_path):
    with haaw.record(tmp_path / "off.haaw", keep="full", hash="off"):
        model.generate(PROMPT, max_tokens=2)
    value = Trace(tmp_path / "off.haaw").value("decode 1/layer 0/attention.weights")
    assert value.hash_verdict == "not hashed"


def test_all_values_of_a_step_take_two_runs_of_it(files, model, monkeypatch):
    trace, runs = haaw.open_trace(files["replayable"], model), []
    plain = Rerun.step
    monkeypatch.setattr(
        Rerun, "step", lambda self, step, *a, **k: (runs.append(step.name), plain(self, step, *a, **k))[1]
    )
    (step,) = [each for each in trace.steps("decode") if each.step == 3]
    for named in named_outputs(trace, step):
        trace.value(named.path)
    assert runs == ["decode 3", "decode 3"]


def test_a_single_value_runs_its_step_no_further_than_it_stands(files, model, monkeypatch):
    trace = haaw.open_trace(files["replayable"], model)
    event = trace.value("decode 3/layer 0/attention.normed").event
    lasts = []
    plain = Rerun.step
    monkeypatch.setattr(
        Rerun, "step", lambda self, *a, last=None: (lasts.append(last), plain(self, *a, last=last))[1]
    )
    haaw.open_trace(files["replayable"], model).value("decode 3/layer 0/attention.normed")
    assert lasts == [event.number]


def test_going_back_to_an_earlier_step_finds_its_own_cache(replayable, full):
    path = "decode {}/layer 3/attention.mixed"
    for step in (4, 1, 3, 2, 4):
        assert (
            replayable.value(path.format(step)).array.tobytes()
            == full.value(path.format(step)).array.tobytes()
        )


def test_a_cache_that_was_looked_at_stays_as_it_was_while_one_goes_on(replayable):
    before = replayable.value("decode 1/layer 0/attention.kv_append#1")
    copy = before.array.copy()
    later = replayable.value("decode 4/layer 0/attention.kv_append#1")
    np.testing.assert_array_equal(before.array, copy)
    assert later.array[:, :12].tobytes() != copy[:, :12].tobytes()
    np.testing.assert_array_equal(later.array[:, :10], copy[:, :10])


def test_a_value_cannot_be_changed_and_describes_itself(full, replayable):
    value = full.value("decode 2/layer 3/attention.weights")
    with pytest.raises(ValueError, match="read-only"):
        replayable.value("decode 2/layer 3/attention.weights").array[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        value.array[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(value)[0] = 0
    said, exact = value.describe(), value.array.astype(np.float64)
    assert said["mean"] == pytest.approx(exact.mean())
    assert said["deviation"] == pytest.approx(exact.std())
    assert (said["least"], said["greatest"]) == (exact.min(), exact.max())
    html = value._repr_html_()
    assert html.startswith("<table")
    assert "H = 0 of 4" in html
    assert "recorded; its hash is the recorded one" in str(value)


def test_what_is_not_finite_is_counted_and_left_out_of_the_mean():
    from haaw.tracing.value_display import statistics

    said = statistics(np.array([1.0, 3.0, np.nan, np.inf, -np.inf, 0.0]))
    assert (said["nan"], said["infinite"], said["zeros"]) == (1, 2, 1)
    assert said["mean"] == pytest.approx(4 / 3)
    assert statistics(np.zeros((0, 3))) == {"shape": (0, 3), "dtype": "float64", "bytes": 0}


def test_names_of_several_requests_say_which(tmp_path):
    model = tiny_language_model(3)
    with haaw.record(tmp_path / "two.haaw", keep="full"):
        model.generate([1, 2, 3], max_tokens=3)
        model.generate([4, 5], max_tokens=2)
    trace = Trace(tmp_path / "two.haaw")
    first, second = (trace.value("decode 1/layer 0/mlp.update", request=number) for number in (1, 2))
    assert (first.path, second.path) == tuple(f"request {n}/decode 1/layer 0/mlp.update" for n in (1, 2))
    assert not np.array_equal(first.array, second.array)
    assert trace.value("decode 2/layer 0/mlp.update").path == "request 1/decode 2/layer 0/mlp.update"
    with pytest.raises(BadInputError, match=r"request 1/decode 1.*request 2/decode 1"):
        trace.value("decode 1/layer 0/mlp.update")
    with pytest.raises(BadInputError, match="names the request 1, and request= the request 2"):
        trace.value("request 1/decode 1/layer 0/mlp.update", request=2)


def test_an_operation_that_this_haaw_does_not_have_is_named(files, model, tmp_path):
    """A trace by another version: what it kept can be read, what must be computed cannot."""

    def renamed(manifest):
        next(op for op in manifest["ops"] if op["name"] == "rms_norm")["name"] = "rms_norm_of_tomorrow"

    old = with_manifest(files["full"], tmp_path / "old.haaw", renamed)
    assert Trace(old).value("decode 1/layer 0/attention.normed").hash_verdict == "identical"
    assert (Trace(old).events["operations"] == -1).sum() > 0
    trace = haaw.open_trace(with_manifest(files["replayable"], tmp_path / "older.haaw", renamed), model)
    with pytest.raises(BadInputError, match='no operation "rms_norm_of_tomorrow"'):
        trace.value("decode 1/layer 0/attention.weights")


def test_a_number_out_of_the_table_of_events_is_a_number(files, model):
    with Trace(files["full"], weights=model.transformer.named_weights) as trace:
        events = trace.events
        (row,) = np.flatnonzero(
            (events["name"] == "softmax") & (events["step"] == 2) & (events["layer"] == 1)
        )
        number = events["number"][row]
        assert trace.value(number).path == "decode 2/layer 1/attention.weights"
        assert trace.users(number)[0].event.name == "attention_mix"
        assert trace.text(events["step"][row]) == trace.text("decode 2")


def test_a_closed_trace_lets_go_of_the_file_and_says_so(files, model):
    trace = Trace(files["full"], weights=model.transformer.named_weights)
    trace.value("decode 2/layer 1/attention.weights")
    trace.close()
    with pytest.raises(BadInputError, match="has been closed; open it again"):
        trace.text("decode 2")

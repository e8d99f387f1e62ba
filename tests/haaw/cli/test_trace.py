"""`haaw trace` and `haaw run --trace`: what they print, their exit status, and files that are none."""

import json
import re
import shutil
import zipfile

import numpy as np
import pytest
from support.trace_files import flipped, recorded, with_manifest

import haaw
from haaw.tracing.trace import Trace

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "run.haaw"
    recorded(path, haaw.load(), PROMPT, max_tokens=4)
    return path


@pytest.fixture(scope="module")
def full_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "full.haaw"
    recorded(path, haaw.load(), PROMPT, "full", max_tokens=3)
    return path


def test_info_says_what_a_trace_is_of(run_haaw, trace_file):
    status, out, error = run_haaw("trace", "info", trace_file)
    assert (status, error) == (0, "")
    for part in (
        "tiny (llama)",
        repr(PROMPT),
        "1 prefill step, 3 decode steps, length",
        "prefill",
        "keeps    replayable",
    ):
        assert part in out
    status, out, error = run_haaw("trace", "info", trace_file, "--verify", "--json")
    said = json.loads(out)
    assert (status, error) == (0, "")
    assert (said["state"], said["damage"], said["complete"], said["ends_at"]) == ("whole", [], True, None)
    assert said["events"] == len(Trace(trace_file))
    assert said["requests"][0]["prompt"] == PROMPT
    assert [phase["phase"] for phase in said["phases"]][-1] == "deliver"


def test_info_of_a_cut_trace_names_the_remedy_and_the_remedy_works(run_haaw, trace_file, tmp_path):
    cut = tmp_path / "cut.haaw"
    cut.write_bytes(trace_file.read_bytes()[:-6000])
    status, out, error = run_haaw("trace", "info", cut)
    assert status == 0
    assert re.search(
        r"note: cut.haaw was cut off: it ends at event \d+, in decode \d; .* haaw trace repair .*cut.haaw",
        error,
    )
    assert "not ended" in out
    assert json.loads(run_haaw("trace", "info", cut, "--json")[1])["state"] == "cut"
    assert run_haaw("trace", "info", cut, "--verify")[0] == 0
    status, out, error = run_haaw("trace", "repair", cut)
    assert (status, error) == (0, "")
    assert "is whole now" in out
    assert zipfile.ZipFile(cut).testzip() is None
    assert "is a whole file, but its run did not end properly" in run_haaw("trace", "info", cut)[2]
    assert json.loads(run_haaw("trace", "repair", cut, "--json")[1])["changed"] is False


def test_info_of_a_growing_trace_says_so(run_haaw, tmp_path):
    model = haaw.load()
    with haaw.record(tmp_path / "growing.haaw"):
        model.generate(PROMPT, max_tokens=2)
        status, _, error = run_haaw("trace", "info", tmp_path / "growing.haaw")
        assert status == 0
        assert re.search(r"growing.haaw is being written just now; so far it ends at event \d+, in ", error)
        assert (
            json.loads(run_haaw("trace", "info", tmp_path / "growing.haaw", "--json")[1])["state"]
            == "growing"
        )
    assert run_haaw("trace", "info", tmp_path / "growing.haaw")[2] == ""


def test_a_damaged_trace_is_found_by_name(run_haaw, full_file, tmp_path):
    member = next(name for name in Trace(full_file).container.members if name.endswith("arena.npy"))
    damaged = flipped(full_file, tmp_path / "damaged.haaw", member, 500)
    status, out, _ = run_haaw("trace", "info", damaged, "--verify")
    assert status == 1
    assert f"{member} of damaged.haaw is damaged" in out
    status, out, _ = run_haaw("trace", "info", damaged, "--verify", "--json")
    assert status == 1
    assert [each["where"] for each in json.loads(out)["damage"]] == [member]
    events = flipped(full_file, tmp_path / "events.haaw", "s000002/events.npy", 300)
    status, out, error = run_haaw("trace", "info", events)
    assert (status, out) == (2, "")
    assert re.fullmatch(r"haaw: s000002/events.npy of events.haaw is damaged .*\n", error)


def not_a_trace(kind, folder, trace_file):
    path = folder / f"{kind}.haaw"
    if kind == "folder":
        path.mkdir()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("Once upon a time\n" * 100)
    elif kind == "npz":
        with open(path, "wb") as file:
            np.savez(file, x=np.zeros(3))
    elif kind == "cut in its manifest":
        path.write_bytes(trace_file.read_bytes()[:5000])
    elif kind == "container without a manifest":
        from haaw.tracing.container import ContainerWriter

        with ContainerWriter(path) as writer:
            writer.add_bytes("notes.txt", b"no trace")
    elif kind == "newer":
        with_manifest(trace_file, path, lambda manifest: manifest.update(schema=7))
    elif kind == "manifest of something else":
        with_manifest(trace_file, path, lambda manifest: manifest.clear())
    elif kind == "cut to 100 bytes":
        path.write_bytes(trace_file.read_bytes()[:100])
    return path


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("missing", "there is no file"),
        ("folder", "is a folder"),
        ("empty", "is empty"),
        ("text", "is no .haaw file"),
        ("npz", "is a ZIP file, but its first member is not written by HAAW"),
        ("cut in its manifest", "has no whole member"),
        ("cut to 100 bytes", "has no whole member|is no .haaw file"),
        ("container without a manifest", "is no trace: it has no manifest.json"),
        ("newer", "has the schema 7; this HAAW reads up to"),
        ("manifest of something else", "states no schema"),
    ],
)
@pytest.mark.parametrize("command", ["info", "export"])
def test_what_is_no_usable_trace_is_refused_in_one_sentence(
    run_haaw, trace_file, tmp_path, kind, said, command
):
    path = not_a_trace(kind, tmp_path, trace_file)
    more = [tmp_path / "out.npz"] if command == "export" else []
    status, out, error = run_haaw("trace", command, path, *more)
    assert (status, out) == (2, "")
    assert error.startswith("haaw: ")
    assert error.count("\n") == 1
    assert re.search(said, error)
    assert not (tmp_path / "out.npz").exists()


def test_tree_shows_levels_and_one_step(run_haaw, trace_file):
    out = run_haaw("trace", "tree", trace_file)[1]
    assert "    decode 3  " in out
    assert "layer" not in out
    out = run_haaw("trace", "tree", trace_file, "--step", "decode 2", "--depth", 1)[1]
    assert out.startswith("decode 2  ")
    assert "\n  layer 3  16 events" in out
    said = json.loads(run_haaw("trace", "tree", trace_file, "--json", "--depth", 9)[1])
    assert said["events"] == len(Trace(trace_file))
    status, _, error = run_haaw("trace", "tree", trace_file, "--step", "decode 9")
    assert (status, error) == (2, "haaw: this trace has no decode 9; it has decode 1 to 3\n")


def test_ops_lists_a_step_or_sums_up(run_haaw, trace_file):
    table = Trace(trace_file).events
    rows = json.loads(run_haaw("trace", "ops", trace_file, "--json")[1])
    assert sum(row["calls"] for row in rows) == (table["kind"] == "operation").sum()
    assert sum(row["operations"] for row in rows) == table["operations"].sum()
    assert sum(row["share"] for row in rows) == pytest.approx(1, abs=0.01)
    rows = json.loads(run_haaw("trace", "ops", trace_file, "--json", "--step", "decode 1", "--layer", 2)[1])
    assert [row["op"] for row in rows][:3] == ["rms_norm", "linear", "rope"]
    assert rows[0]["path"] == "decode 1/layer 2/attention.normed"
    out = run_haaw("trace", "ops", trace_file, "--step", "decode 1")[1]
    assert re.search(r"decode 1/layer 0/attention.weights +softmax +scores_HTS \(4, 1, 6\)", out)
    assert run_haaw("trace", "ops", trace_file, "--layer", 1)[0] == 2


def test_a_narrow_terminal_gets_fewer_columns(run_haaw, trace_file, monkeypatch):
    def lines(width: int, *, terminal: bool = True) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
        return run_haaw("trace", "ops", trace_file, "--step", "decode 1")[1].splitlines()

    whole = lines(40, terminal=False)
    assert whole[0].split() == "event path op inputs shape took_us operations bytes site".split()  # noqa: SIM905
    widest = max(map(len, whole))
    assert lines(widest) == whole
    narrower = lines(widest - 1)
    assert narrower[0].split() == [name for name in whole[0].split() if name != "inputs"]
    assert narrower[-1] == "Left out, since this terminal is narrow: inputs. --json has them."
    assert len(narrower) == len(whole) + 1
    assert lines(20)[0].split() == ["event", "path", "shape", "took_us", "operations"]


def test_sums_on_a_narrow_terminal_keep_the_names(run_haaw, trace_file, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    lines = run_haaw("trace", "ops", trace_file)[1].splitlines()
    assert lines[0].split() == ["op", "calls", "took_ms", "share"]
    assert lines[-1].endswith(" narrow: operations_per_byte, bytes, operations. --json has them.")


def test_value_prints_numbers_source_and_verdict(run_haaw, trace_file, full_file):
    path = "decode 2/layer 3/attention.weights"
    out = run_haaw("trace", "value", trace_file, path)[1]
    assert "recomputed; its hash is the recorded one" in out
    assert (
        "recorded; its hash is the recorded one"
        in run_haaw("trace", "value", full_file, path, "--head", 1)[1]
    )
    said = json.loads(run_haaw("trace", "value", trace_file, path, "--head", 1, "--json")[1])
    exact = haaw.open_trace(trace_file).value(path, head=1).array
    np.testing.assert_array_equal(np.array(said["values"], dtype=np.float32).reshape(said["shape"]), exact)
    assert (said["axes"], said["source"], said["hash"], said["truncated"]) == (
        "TS",
        "recomputed",
        "identical",
        False,
    )
    status, out, error = run_haaw("trace", "value", trace_file, "decode 2/layer 3/attention.wieghts")
    assert (status, out) == (2, "")
    assert 'did you mean "decode 2/layer 3/attention.weights"' in error


def test_value_with_another_model_is_refused(run_haaw, trace_file, tiny_file):
    status, _, error = run_haaw("trace", "value", trace_file, "decode 2/output.logits", "--model", tiny_file)
    assert status == 2
    assert "was made with another model" in error
    status, out, _ = run_haaw("trace", "value", trace_file, "decode 2/output.logits", "--model", "tiny")
    assert status == 0
    assert "recomputed" in out


def test_export_writes_what_numpy_loads(run_haaw, trace_file, full_file, tmp_path):
    status, out, error = run_haaw(
        "trace", "export", full_file, tmp_path / "full.npz", "--to", "npz", "--json"
    )
    assert (status, error) == (0, "")
    report, trace = json.loads(out), Trace(full_file)
    with np.load(tmp_path / "full.npz") as values:
        assert len(values.files) == report["values"] > 100
        for path in ("decode 2/layer 3/attention.weights", "prefill 0/output.logits"):
            np.testing.assert_array_equal(values[path], trace.value(path).array)
    kept = run_haaw("trace", "export", trace_file, tmp_path / "kept.npz", "--step", "decode 2")
    assert kept[0] == 0
    made = sum(
        len(event.outputs)
        for event in trace
        if event.kind == "operation" and (event.place.stage, event.place.step) == ("decode", 2)
    )
    assert f"{made} values were not kept; --recompute" in kept[2]
    assert (
        run_haaw("trace", "export", trace_file, tmp_path / "all.npz", "--step", "decode 2", "--recompute")[0]
        == 0
    )
    with np.load(tmp_path / "all.npz") as values, np.load(tmp_path / "full.npz") as full:
        own = [name for name in full.files if name.startswith("decode 2/")]
        assert set(own) <= set(values.files)
        for name in own:
            np.testing.assert_array_equal(values[name], full[name])


def test_export_refuses_what_it_cannot_write(run_haaw, full_file, trace_file, tmp_path, tiny_file):
    (tmp_path / "there.npz").write_bytes(b"mine")
    assert run_haaw("trace", "export", full_file, tmp_path / "there.npz")[0] == 2
    assert (tmp_path / "there.npz").read_bytes() == b"mine"
    assert run_haaw("trace", "export", full_file, tmp_path / "no" / "out.npz")[0] == 2
    assert "the formats are" in run_haaw("trace", "export", full_file, tmp_path / "x.csv", "--to", "csv")[2]
    half = run_haaw("trace", "export", trace_file, tmp_path / "half.npz", "--recompute", "--model", tiny_file)
    assert half[0] == 2
    assert "was made with another model" in half[2]
    assert not (tmp_path / "half.npz").exists()


def test_trace_without_a_command_shows_help(run_haaw):
    status, out, _ = run_haaw("trace")
    assert status == 0
    for command in ("info", "tree", "ops", "value", "repair", "export"):
        assert command in out


# haaw run --trace


def sizes_in(error: str) -> tuple[float, float]:
    units = {"bytes": 1, "kB": 1e3, "MB": 1e6}
    before = re.search(r"trace: about ([\d.]+) (\w+)", error)
    after = re.search(r" has ([\d.]+) (\w+), [\d,]+ events", error)
    assert before
    assert after
    return tuple(float(found[1]) * units[found[2]] for found in (before, after))  # type: ignore[return-value]


@pytest.mark.parametrize("keep", ["events", "replayable", "full", "replayable; full: op=softmax layer=1"])
@pytest.mark.parametrize(
    "options", [[], ["--temperature", 1, "--top-k", 20, "--seed", 3, "--heads", "separate"]]
)
def test_run_records_and_tells_the_size_before_and_after(run_haaw, tiny_file, tmp_path, keep, options):
    file = tmp_path / "run.haaw"
    arguments = ["run", "hello there, hello", "--model", tiny_file, "--max-tokens", 30, "--raw", *options]
    plain = run_haaw(*arguments)
    status, out, error = run_haaw(*arguments, "--trace", file, "--keep", keep)
    assert (status, out) == (plain[0], plain[1])  # recording changes nothing
    before, after = sizes_in(error)
    assert after == pytest.approx(file.stat().st_size, rel=0.01)
    assert before == pytest.approx(after, rel=0.35)
    assert str(Trace(file).manifest["policy"]["level"]) == keep.split(";")[0]
    assert Trace(file).complete
    assert Trace(file).text() + "\n" == out


def test_run_with_an_impossible_trace_or_policy_runs_nothing(run_haaw, tiny_file, tmp_path):
    base = ["run", "hello", "--model", tiny_file, "--max-tokens", 3]
    for more, said in (
        (["--keep", "full"], "name its file with --trace"),
        (["--trace", tmp_path / "a.haaw", "--keep", "ful"], 'did you mean "full"'),
        (
            ["--trace", tmp_path / "a.haaw", "--keep", "full: layer=7"],
            "names the layer 7; this model has the layers 0 to 1",
        ),
        (["--trace", tmp_path / "no" / "a.haaw"], "does not exist"),
        (["--trace", tmp_path], "."),
    ):
        status, out, error = run_haaw(*base, *more)
        assert (status, out) == (2, ""), more
        assert re.search(said, error)
    assert not (tmp_path / "a.haaw").exists()


def test_run_leaves_a_strangers_file_alone(run_haaw, tiny_file, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    status, _, error = run_haaw("run", "hello", "--model", tiny_file, "--trace", tmp_path / "letter.txt")
    assert status == 2
    assert "is no .haaw file, so it is left alone" in error
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_a_trace_can_be_moved_and_read_elsewhere(run_haaw, trace_file, tmp_path):
    moved = shutil.copy(trace_file, tmp_path / "Ähre und 雪.haaw")
    assert run_haaw("trace", "info", moved)[0] == 0


def test_a_flipped_bit_in_a_header_is_damage_and_not_a_cut(run_haaw, full_file, tmp_path):
    damaged = tmp_path / "damaged.haaw"
    content = bytearray(full_file.read_bytes())
    with Trace(full_file) as trace:
        content[trace.container.members["s000003/events.npy"].offset - 20] ^= 1
    damaged.write_bytes(content)
    status, out, error = run_haaw("trace", "info", damaged)
    assert status == 0
    assert "damaged.haaw is damaged, and what is shown ends at" in error
    status, out, error = run_haaw("trace", "info", damaged, "--verify", "--json")
    said = json.loads(out)
    assert (status, said["state"]) == (1, "damaged")
    assert "s000003/events.npy" in said["damage"][0]["sentence"]
    assert "what stands behind the place was not replayed" in run_haaw("trace", "replay", damaged)[1]


def test_a_budget_that_was_spent_is_told_after_the_run_and_in_the_trace(run_haaw, tmp_path):
    path = tmp_path / "my run.haaw"
    status, _, error = run_haaw(
        "run", PROMPT, "--max-tokens", "2", "--trace", path, "--keep", "full; budget=1kB"
    )
    assert status == 0
    assert "its budget of 1,000 bytes was spent" in error
    assert f"haaw trace info '{path}'" in error
    assert "nothing from deliver on, for the budget of 1 kB" in run_haaw("trace", "info", path)[1]


def test_an_impossible_wish_leaves_an_earlier_trace_alone(run_haaw, trace_file, tmp_path):
    path = tmp_path / "run.haaw"
    shutil.copy(trace_file, path)
    for wish in (("--bias", "x"), ("--temperature", "-1"), ("--cache", "nosuch")):
        assert run_haaw("run", PROMPT, *wish, "--trace", path)[0] == 2
        assert path.read_bytes() == trace_file.read_bytes()

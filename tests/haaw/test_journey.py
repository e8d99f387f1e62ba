"""Where a journey starts: what is noted of machine, process, imports and loading, and that nothing else is."""

import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

import pytest
from support.gguf_models import CHAT_TEMPLATE, tiny_gguf
from support.model_folders import llama_tensors, model_folder, write_llama2c, write_llama2c_tokenizer

import haaw
from haaw import journey
from haaw.loading.noted import name_to_note


@pytest.fixture(autouse=True)
def _own_journey(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has records of its own."""
    monkeypatch.setattr(journey, "_first", [])
    monkeypatch.setattr(journey, "_latest", deque(maxlen=journey.LATEST_KEPT))
    monkeypatch.setattr(journey, "_left_out", 0)


def noted() -> list[dict]:
    """All but the two records of what was before Python."""
    return journey.so_far()[2:]


def test_a_span_says_when_it_began_and_how_long_it_took_also_where_it_fails() -> None:
    before = time.perf_counter_ns()

    def work() -> None:
        with journey.span("work", size=3) as facts:
            facts["done"] = 2
            time.sleep(0.01)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    (record,) = noted()
    assert (record["name"], record["facts"]) == (
        "work",
        {"size": 3, "done": 2, "failed": "ZeroDivisionError"},
    )
    assert before <= record["start_ns"] <= before + 5e6
    assert 1e7 <= record["took_ns"] <= time.perf_counter_ns() - before


def test_records_come_in_the_order_in_which_they_began() -> None:
    with journey.span("outer"):
        journey.mark("moment")
        with journey.span("inner"):
            pass
    journey.between("earlier", 5, 9)
    assert [record["name"] for record in noted()] == ["earlier", "outer", "moment", "inner"]
    assert noted()[0]["took_ns"] == 4


def test_facts_of_a_subject_are_added_in_its_own_thread_only() -> None:
    with journey.about(model="a"), journey.about(part="b"):
        journey.mark("inside", part="own")
        thread = threading.Thread(target=journey.mark, args=("elsewhere",))
        thread.start()
        thread.join()
    journey.mark("behind")
    assert {record["name"]: record["facts"] for record in noted()} == {
        "inside": {"model": "a", "part": "own"},
        "elsewhere": {},
        "behind": {},
    }


def test_what_is_handed_out_can_be_changed_without_harm() -> None:
    journey.mark("moment", value=1)
    noted()[0]["facts"]["value"] = 2
    assert noted()[0]["facts"] == {"value": 1}


def test_a_process_that_loads_for_ever_keeps_the_first_and_the_latest_records() -> None:
    for number in range(10_000):
        journey.mark("load", number=number)
    numbers = [record["facts"]["number"] for record in noted() if record["name"] == "load"]
    first, latest = journey.FIRST_KEPT, journey.LATEST_KEPT
    assert numbers == [*range(first), *range(10_000 - latest, 10_000)]
    (left_out,) = [record for record in noted() if record["name"] == "left out"]
    assert left_out["facts"] == {"records": 10_000 - first - latest}


@pytest.mark.skipif(not os.path.exists("/proc/uptime"), reason="only Linux tells")
def test_machine_and_process_started_when_other_clocks_say_they_did() -> None:
    """Oracles: the clock that runs from boot, and the time of the process's own entry in /proc."""
    machine, process = journey.so_far()[:2]
    since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    up_s = (time.perf_counter_ns() - machine["start_ns"]) / 1e9
    assert abs(up_s - since_boot_s) < 0.05
    assert abs(machine["facts"]["up_s"] - since_boot_s) < 0.05
    assert machine["start_ns"] < process["start_ns"] < journey.BEGAN_NS


def test_a_system_that_does_not_tell_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", refuse)
    assert [record["start_ns"] for record in journey.so_far()] == [None, None]


def test_a_program_whose_name_holds_brackets_and_spaces_is_read_rightly(tmp_path: Path) -> None:
    """/proc/self/stat holds the name of the program in brackets, whatever is in it."""
    script = tmp_path / "odd.py"
    script.write_text(
        "import ctypes, time\n"
        "ctypes.CDLL(None).prctl(15, b'a) b ( 7 8', 0, 0, 0)\n"  # PR_SET_NAME
        "from haaw import journey\n"
        "print((time.perf_counter_ns() - journey.so_far()[1]['start_ns']) / 1e9)\n"
    )
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert 0 <= float(run.stdout) < 20


def fresh(code: str) -> list[dict]:
    code += "\nimport json; from haaw import journey; print(json.dumps(journey.so_far()))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    records: list[dict] = json.loads(run.stdout.splitlines()[-1])
    return records


def test_importing_haaw_alone_imports_no_numpy_and_little_else() -> None:
    """The record of the journey must not make the import heavy."""
    code = "import sys; before = set(sys.modules); import haaw; new = set(sys.modules) - before; "
    code += "print(len(new), 'numpy' in new)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, has_numpy = run.stdout.split()
    assert has_numpy == "False"
    assert int(count) < 40


def test_a_fresh_process_tells_of_its_imports_and_of_its_load() -> None:
    names = [record["name"] for record in fresh("import haaw; haaw.load()")]
    before = ["machine started", "process started", "import haaw", "import haaw.loading", "import numpy"]
    opening = ["load", "open weights", "map file", "read header"]
    assert names == [*before, *opening, "read weights", "build tokenizer", "build chat template"]
    assert "import numpy" not in [record["name"] for record in fresh("import numpy, haaw; haaw.load()")]


def test_loading_notes_names_sizes_and_times_and_no_paths(tmp_path: Path) -> None:
    folder = tmp_path / "secret place"
    folder.mkdir()
    file = tiny_gguf(folder / "tiny.gguf", template=CHAT_TEMPLATE)
    haaw.load(file)
    records = {record["name"]: record for record in noted()}
    assert records["open weights"]["facts"]["file"] == "tiny.gguf"
    assert records["open weights"]["facts"]["tensors"] == records["read weights"]["facts"]["tensors"] == 20
    assert records["read weights"]["facts"]["stored_as"] == {"F32": 20}
    # All are stored as float32, so that both counts are those of the file's tensors.
    stored = records["read weights"]["facts"]["stored_bytes"]
    assert (
        stored
        == records["read weights"]["facts"]["float32_bytes"]
        == records["open weights"]["facts"]["bytes"]
    )
    assert records["build tokenizer"]["facts"] == {
        "kind": "ByteLevelTokenizer",
        "tokens": 263,
        "model": "tiny.gguf",
    }
    load = records["load"]
    for name in ("map file", "read header", "read weights", "build tokenizer"):
        assert load["start_ns"] <= records[name]["start_ns"]
        assert records[name]["start_ns"] + records[name]["took_ns"] <= load["start_ns"] + load["took_ns"]
    assert "secret" not in json.dumps(noted())


def test_several_loads_in_one_process_are_told_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        haaw.load(tiny_gguf(tmp_path / f"{name}.gguf"))
    models = [record["facts"]["model"] for record in noted() if record["name"] == "read weights"]
    assert models == ["one.gguf", "two.gguf"]
    assert all("model" in record["facts"] for record in noted())


def test_a_load_that_fails_says_so(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(3))
    with pytest.raises(haaw.BadInputError):
        haaw.load(bad)
    failed = {record["name"]: record["facts"].get("failed") for record in noted()}
    assert failed == {"load": "FormatError", "open weights": "FormatError"}


@pytest.mark.parametrize(
    ("asked", "path", "name"),
    [
        ("smollm2-135m", "/cache/x.gguf", "smollm2-135m"),
        ("hf:someone/model", "/cache/model", "hf:someone/model"),
        ("/home/me/models/m.gguf", "/home/me/models/m.gguf", "m.gguf"),
        ("models/m/", "models/m", "m"),
        (Path("/home/me/m.gguf"), "/home/me/m.gguf", "m.gguf"),
        ("m.gguf", "m.gguf", "m.gguf"),
    ],
)
def test_a_model_is_named_as_it_was_asked_for_and_a_path_by_its_last_part(asked, path, name) -> None:
    assert name_to_note(asked, Path(path)) == name


def test_the_current_folder_as_a_model_is_named_by_its_own_name(tmp_path, monkeypatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    assert name_to_note(".", Path(".")) == "mine"


def test_folders_and_llama2c_files_are_noted_as_well(tmp_path: Path) -> None:
    haaw.load(model_folder(tmp_path / "folder"))
    file = write_llama2c(tmp_path / "model.bin", llama_tensors())
    write_llama2c_tokenizer(tmp_path / "tok263.bin")
    haaw.load(file)
    opened = [(r["facts"]["file"], r["facts"]["format"]) for r in noted() if r["name"] == "open weights"]
    assert opened == [("folder", "safetensors"), ("model.bin", "llama2.c")]
    built = [record["facts"]["kind"] for record in noted() if record["name"] == "build tokenizer"]
    assert built[1] == "SentencePieceTokenizer"

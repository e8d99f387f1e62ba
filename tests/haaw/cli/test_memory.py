"""`haaw memory`: the table, the formulas, JSON, models of every kind of file, and what is refused."""

import json
import re
from pathlib import Path

import pytest
from support.gguf_models import tiny_gguf
from support.model_folders import LLAMA_CONFIG, model_folder, write_json, write_llama2c
from support.tiny_models import tiny_config, tiny_tensors

import haaw


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HAAW_CACHE", str(tmp_path / "cache"))


NUMBERS = ["memory", "--layers", 32, "--kv-heads", 8, "--head-dim", 128]


def asked(run_haaw, *arguments):
    """The figures of a command by name, and the whole answer."""
    status, out, error = run_haaw(*arguments, "--json")
    assert (status, error) == (0, "")
    told = json.loads(out)
    return {figure["name"]: figure["value"] for figure in told["figures"]}, told


def test_the_reference_case_with_its_formula(run_haaw):
    status, out, _ = run_haaw(*NUMBERS, "--bytes-per-element", 2, "--context", 8192, "--sequences", 2)
    assert status == 0
    assert re.search(r"^a token +131,072 bytes +128 KiB$", out, re.MULTILINE)
    assert re.search(r"^a sequence needs +1,073,741,824 bytes +1\.00 GiB$", out, re.MULTILINE)
    assert re.search(r"^all sequences take +2,147,483,648 bytes +2\.00 GiB$", out, re.MULTILINE)
    assert "2 · layers · kv_heads · head_dim · bytes_per_element" in out
    assert "2 · 32 · 8 · 128 · 2 = 131,072 bytes" in out


def test_without_anything_it_is_the_reference_case(run_haaw):
    figures, told = asked(run_haaw, "memory")
    assert (told["name"], figures["a token"]) == ("Reference case", 131_072)


def test_what_fits_into_a_memory_beside_the_weights(run_haaw):
    figures, _ = asked(run_haaw, *NUMBERS, "--memory", "24GiB", "--weights", "16 GiB", "--cache", "static")
    assert figures["largest context"] == 65_536  # 8 GiB / 131,072
    assert figures["most sequences"] == 8


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """The same tiny model in each kind of file: 2 layers, 2 KV heads of width 6, 128 positions."""
    folder = tmp_path_factory.mktemp("memory")
    config = tiny_config(vocabulary_size=263)
    (folder / "config").mkdir()
    write_json(folder / "config" / "config.json", LLAMA_CONFIG)
    return {
        "a GGUF file": tiny_gguf(folder / "tiny.gguf"),
        "a folder": model_folder(folder / "hf"),
        "a folder of shards": model_folder(folder / "shards", shards=3),
        "a llama2.c file": write_llama2c(folder / "model.bin", tiny_tensors(0, config)),
        "a config alone": folder / "config" / "config.json",
        "a folder with a config alone": folder / "config",
    }


KINDS_OF_FILE = [
    "a GGUF file", "a folder", "a folder of shards", "a llama2.c file", "a config alone",
    "a folder with a config alone",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS_OF_FILE)
def test_every_kind_of_file_is_read_without_its_weights(files, kind, run_haaw):
    figures, told = asked(run_haaw, "memory", files[kind])
    element = 2 if kind == "a config alone" else 4
    assert figures["a token"] == 2 * 2 * 2 * 6 * element
    assert told["context"] == 128
    assert told["assumptions"]


def test_the_weights_of_a_file_are_what_loading_it_takes(files, run_haaw):
    _, told = asked(run_haaw, "memory", files["a GGUF file"])
    named = haaw.load(files["a GGUF file"]).transformer.named_weights()
    frequency = named["rope.frequency"].nbytes  # computed, not in the file
    assert told["weights_bytes"] == sum(array.nbytes for array in named.values()) - frequency


def test_the_embedded_model_and_one_that_is_not_here(run_haaw):
    figures, told = asked(run_haaw, "memory", "tiny")
    layout = haaw.load().transformer.cache_layout
    assert figures["a token"] == layout.bytes_per_position
    _, told = asked(run_haaw, "memory", "smollm2-135m")
    assert "not here" in told["assumptions"][0]
    assert told["shape"]["layers"] == 30


def test_a_file_that_was_cut_is_refused(tmp_path, run_haaw):
    path = tiny_gguf(tmp_path / "cut.gguf")
    path.write_bytes(path.read_bytes()[:300])
    status, out, error = run_haaw("memory", path)
    assert (status, out) == (2, "")
    assert error.startswith("haaw: cut.gguf")


BAD = {
    "no heads": (["--layers", 2, "--kv-heads", 0, "--head-dim", 8], "kv_heads is 0"),
    "negative layers": (["--layers", -2, "--kv-heads", 2, "--head-dim", 8], "layers is -2"),
    "numbers that are missing": (["--layers", 2], "--kv-heads, --head-dim missing"),
    "no context": (["--context", 0], "--context is 0"),
    "a negative context": (["--context", -1], "--context is -1"),
    "beyond the model": (["gpt2", "--context", 1025], "1,024 positions"),
    "a window beyond the context": ([*NUMBERS[1:], "--window", 5000, "--context", 4096], "--window is 5,000"),
    "a model and other layers": (["mistral-7b-v0.1", "--layers", 31], "--layers is 31"),
    "a model and another window": (["mistral-7b-v0.1", "--window", 100], "has 4096"),
    "a model and another pattern": (["gemma-3-27b", "--pattern", "wf"], "--pattern is 'wf'"),
    "an unknown model": (["no-such"], "no-such"),
    "an unknown option": (["--moon", 1], "--moon"),
    "an unknown kind": (["--cache", "magic"], "magic"),
    "no size": (["--memory", "a lot"], "--memory is 'a lot'"),
    "sequences of nothing": (["--sequences", 0], "sequences is 0"),
    "half a number": (["--layers", 2.5], "--layers"),
    "not a number": (["--bytes-per-element", "nan"], "bytes_per_element"),
    "too small a capacity": (["--capacity", 10], "capacity of 10"),
    "simulation without its word": (["--seed", 3], "--simulate"),
    "two things at once": (["--simulate", "--run"], "choose one"),
    "a seed and a file": (["--simulate", "--seed", 1, "--lengths", "x.csv"], "--lengths"),
    "a missing file of lengths": (["--simulate", "--lengths", "none.csv"], "none.csv"),
    "no room for a simulation": (["llama-3.1-8b", "--simulate", "--memory", "10GB"], "no room"),
    "no requests": (["--simulate", "--requests", 0], "requests is 0"),
    "a run of nothing": (["--run"], "needs a model"),
}


@pytest.mark.parametrize(("arguments", "says"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line_and_status_2(arguments, says, run_haaw):
    status, out, error = run_haaw("memory", *arguments)
    assert (status, out) == (2, "")
    assert error.startswith("haaw: ")
    assert error.count("\n") == 1
    assert says in error


def test_numbers_that_agree_with_the_model_are_fine(run_haaw):
    figures, _ = asked(
        run_haaw, "memory", "gemma-3-27b", "--layers", 62, "--pattern", "wwwwwfwwwwwf", "--window", 1024
    )
    assert figures["a token"] == 507_904


def test_a_window_on_a_model_without_one_is_called_an_approximation(run_haaw):
    _, told = asked(run_haaw, "memory", "llama-3.1-8b", "--window", 4096)
    assert any("an approximation" in note for note in told["assumptions"])


def test_the_presets_name_their_sources(run_haaw):
    status, out, _ = run_haaw("memory", "--presets")
    assert status == 0
    assert "70,272" in out
    assert "arXiv:2407.21783" in out
    rows = json.loads(run_haaw("memory", "--presets", "--json")[1])
    assert all(row["source"] for row in rows)


def test_a_simulation_as_a_table_and_as_json(run_haaw):
    command = ["memory", *NUMBERS[1:], "--simulate", "--seed", 3, "--requests", 60]
    status, out, _ = run_haaw(*command)
    assert status == 0
    assert "free, too scattered (external)" in out
    assert "60 requests made from the seed 3" in out
    told = json.loads(run_haaw(*command, "--json")[1])
    again = json.loads(run_haaw(*command, "--json")[1])
    assert told == again
    assert [outcome["method"] for outcome in told["outcomes"]] == ["contiguous", "paged"]
    assert told["outcomes"][0]["requests_finished"] == 60
    assert len(told["outcomes"][0]["timeline"]["held"]) == told["outcomes"][0]["steps"]


def test_a_simulation_of_a_file_with_a_picture(tmp_path, run_haaw):
    pytest.importorskip("matplotlib")
    rows = tmp_path / "rows.csv"
    rows.write_text("prompt,answer\n3,4\n5,2\n9000,1\n")
    picture = tmp_path / "plot.png"
    status, out, error = run_haaw(
        *NUMBERS, "--simulate", "--lengths", rows, "--memory", "16MiB", "--context", 100, "--plot", picture
    )
    assert (status, error) == (0, f"the picture is in {picture}\n")
    assert "through 128 positions (16.0 MiB)" in out  # 16 MiB / 131,072
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_run_beside_its_plan(files, run_haaw):
    status, out, error = run_haaw("memory", files["a GGUF file"], "--run", "--context", 100, "--json")
    assert (status, error) == (0, "")
    told = json.loads(out)
    assert told["cache_planned_bytes"] == told["cache_counted_bytes"]
    status, out, _ = run_haaw("memory", files["a GGUF file"], "--run", "--context", 100)
    assert "estimated" in out
    assert "difference" in out


def test_the_page_is_written(tmp_path, run_haaw):
    page = tmp_path / "page.html"
    status, out, error = run_haaw("memory", "gemma-3-27b", "--html", page)
    assert (status, out) == (0, "")
    assert str(page) in error
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")

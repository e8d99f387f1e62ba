import hashlib
import json
import random
import sys

import pytest

from haaw.errors import BadInputError, MissingLibraryError
from weights_tools.pull import (
    HubReference,
    PullError,
    find_hub_model,
    parse_hub_reference,
    pull,
    pull_from_hub,
)

COMMIT = "a" * 40
REPOSITORY = "maker/tiny-model"
WEIGHTS = random.Random(5).randbytes(3_000_000)
SMALL = {"config.json": b"{}", "tokenizer.json": b'{"model": {}}', "tokenizer.model": b"\x0a\x00"}


@pytest.fixture
def hub(server, cache, monkeypatch):
    """A stand-in for the Hub: the list of a repository's files, and the plain files (no Xet)."""
    library = pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    if hasattr(library, "close_session"):
        library.close_session()  # its HTTP client keeps the mode that it was made in

    def offer(files, *, listed=(), commit=COMMIT, revision=None):
        siblings = []
        for name, content in files.items():
            path = f"/{REPOSITORY}/resolve/{commit}/{name}"
            digest = hashlib.sha256(content).hexdigest()
            server.files[path] = content
            server.headers[path] = {"X-Repo-Commit": commit, "ETag": f'"{digest}"'}
            large = {"sha256": digest, "size": len(content), "pointerSize": 100}
            siblings.append(
                {"rfilename": name, "size": len(content), **({"lfs": large} if len(content) > 99 else {})}
            )
        siblings += [{"rfilename": name, "size": 10} for name in listed]
        body = {
            "id": REPOSITORY,
            "modelId": REPOSITORY,
            "sha": commit,
            "siblings": siblings,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "private": False,
        }
        answer = json.dumps(body).encode()
        suffix = f"/revision/{revision}" if revision else ""
        server.files[f"/api/models/{REPOSITORY}{suffix}"] = answer
        return server.url

    return offer


@pytest.mark.parametrize(
    ("text", "owner", "name", "file"),
    [
        ("hf:o/n", "o", "n", None),
        ("hf:HuggingFaceTB/SmolLM2-135M_x.y", "HuggingFaceTB", "SmolLM2-135M_x.y", None),
        ("hf:o/n/F.Q4_1.gguf", "o", "n", "F.Q4_1.gguf"),
        ("hf:o/n/sub/F.gguf", "o", "n", "sub/F.gguf"),
    ],
)
def test_a_reference_names_owner_name_and_perhaps_a_file(text, owner, name, file):
    assert parse_hub_reference(text) == HubReference(owner, name, file)


@pytest.mark.parametrize(
    "text",
    ["hf:", "hf:x", "hf:../x", "hf:x/..", "hf:x/../y.gguf", "hf:o/n/", "hf:o/n/model.bin", "hf:/n", "hf:o//n",
     "hf:o/n/C:\\e.gguf", "hf:o/n/../../e.gguf", "hf:o/n\n", "hf:o/n?x=1", "hf:o/n#f", "hf:-o/n", "hf:o/a--b",
     "hf:ö/n", "hf:o/" + "n" * 97, "o/n", "hf:o/n/.gguf", "hf:https://x/y"],
)  # fmt: skip
def test_a_reference_with_bad_characters_is_refused_before_anything_is_asked(text, cache):
    with pytest.raises(BadInputError, match="write hf:OWNER/NAME") as caught:
        parse_hub_reference(text)
    assert len(str(caught.value)) < 400
    if text.startswith("hf:"):
        with pytest.raises(BadInputError):
            pull(text)
    assert not cache.exists()


@pytest.mark.parametrize("revision", ["../x", "a/../b", "", "a b", "-x", "a\n", "/a"])
def test_a_revision_with_bad_characters_is_refused(revision, cache):
    with pytest.raises(BadInputError, match="is not a revision"):
        pull("hf:o/n", revision=revision)


def test_weights_and_tokenizer_come_and_nothing_that_could_run_code(hub, cache, server):
    files = {**SMALL, "model.safetensors": WEIGHTS}
    listed = ["pytorch_model.bin", "model.pt", "modeling_tiny.py", "README.md", "onnx/model.onnx",
              "other.safetensors", "../../escape.json", "/etc/x.json", "a\\b.json", "sub/config.json",
              ".hidden.json"]  # fmt: skip
    url = hub(files, listed=listed)
    seen = []
    folder = pull_from_hub(f"hf:{REPOSITORY}", endpoint=url, progress=lambda *report: seen.append(report))
    assert folder == cache / "hub" / "maker" / "tiny-model"
    plain = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert plain == set(files)
    for name, content in files.items():
        assert (folder / name).read_bytes() == content
    assert find_hub_model(f"hf:{REPOSITORY}") == folder
    assert ("downloading model.safetensors (2 of 4)", len(WEIGHTS), len(WEIGHTS)) in seen
    assert not any("pytorch_model" in path for path, _ in server.ranges)


def test_a_second_pull_fetches_no_file_again(hub, server):
    url = hub({**SMALL, "model.safetensors": WEIGHTS})
    pull_from_hub(f"hf:{REPOSITORY}", endpoint=url)
    before = len([path for path, _ in server.ranges if "resolve" in path])
    pull_from_hub(f"hf:{REPOSITORY}", endpoint=url)
    assert len([path for path, _ in server.ranges if "resolve" in path]) == before


def test_a_transfer_that_breaks_goes_on_where_it_stopped(hub, server, monkeypatch):
    """The library goes on from the last whole piece, of 10 MB unless told otherwise."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 250_000)
    url = hub({**SMALL, "model.safetensors": WEIGHTS})
    server.cuts_bytes = [1_000_000]
    folder = pull_from_hub(f"hf:{REPOSITORY}", endpoint=url)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    path = f"/{REPOSITORY}/resolve/{COMMIT}/model.safetensors"
    assert [asked for asked_path, asked in server.ranges if asked_path == path] == [None, "bytes=1000000-"]
    assert server.served_bytes[path] == len(WEIGHTS)


def test_one_gguf_file_is_chosen_by_its_name(hub, cache):
    url = hub({"a.Q4_1.gguf": WEIGHTS, "a.F16.gguf": WEIGHTS * 2})
    path = pull_from_hub(f"hf:{REPOSITORY}/a.Q4_1.gguf", endpoint=url)
    assert path.read_bytes() == WEIGHTS
    assert not (path.parent / "a.F16.gguf").exists()
    assert find_hub_model(f"hf:{REPOSITORY}/a.Q4_1.gguf") == path
    assert find_hub_model(f"hf:{REPOSITORY}/a.F16.gguf") is None
    assert find_hub_model(f"hf:{REPOSITORY}") is None
    with pytest.raises(PullError, match=r"holds no b\.gguf; its GGUF files: a\.Q4_1\.gguf, a\.F16\.gguf"):
        pull_from_hub(f"hf:{REPOSITORY}/b.gguf", endpoint=url)


def test_a_revision_has_a_folder_of_its_own(hub, cache):
    url = hub({**SMALL, "model.safetensors": WEIGHTS}, commit="b" * 40, revision="v1.0")
    folder = pull_from_hub(f"hf:{REPOSITORY}", endpoint=url, revision="v1.0")
    assert folder == cache / "hub" / "maker" / "tiny-model@v1.0"
    assert find_hub_model(f"hf:{REPOSITORY}", revision="v1.0") == folder
    assert find_hub_model(f"hf:{REPOSITORY}") is None


def test_a_file_with_another_digest_is_deleted(hub, server):
    url = hub({**SMALL, "model.safetensors": WEIGHTS})
    server.files[f"/{REPOSITORY}/resolve/{COMMIT}/model.safetensors"] = WEIGHTS[:-1] + b"!"
    with pytest.raises(
        PullError, match=r"model\.safetensors has 3000000 bytes and SHA-256 .* it was deleted"
    ):
        pull_from_hub(f"hf:{REPOSITORY}", endpoint=url)
    assert find_hub_model(f"hf:{REPOSITORY}") is None


def test_a_lost_or_shortened_file_is_no_longer_a_whole_model(hub):
    url = hub({**SMALL, "model.safetensors": WEIGHTS})
    folder = pull_from_hub(f"hf:{REPOSITORY}", endpoint=url)
    (folder / "model.safetensors").write_bytes(WEIGHTS[:-1])
    assert find_hub_model(f"hf:{REPOSITORY}") is None


def test_a_repository_of_pickles_is_refused_and_its_gguf_named(hub):
    url = hub({"config.json": b"{}", "m.gguf": b"GGUF"}, listed=["pytorch_model.bin"])
    with pytest.raises(PullError, match=r"loads no pickle.*hf:maker/tiny-model/m\.gguf"):
        pull_from_hub(f"hf:{REPOSITORY}", endpoint=url)


@pytest.mark.parametrize(
    ("status", "code", "sentence"),
    [
        (404, "RepoNotFound", "was not found on the Hub"),
        (401, "RepoNotFound", "was not found on the Hub"),
        (403, "GatedRepo", "is gated"),
        (404, "RevisionNotFound", "has no revision"),
        (500, "", "the Hub answered 500"),
    ],
)
def test_what_the_hub_refuses_is_told_in_one_sentence(hub, server, status, code, sentence):
    url = hub({})
    path = f"/api/models/{REPOSITORY}"
    server.statuses[path] = status
    server.headers[path] = {"X-Error-Code": code} if code else {}
    with pytest.raises(PullError, match=sentence) as caught:
        pull_from_hub(f"hf:{REPOSITORY}", endpoint=url)
    assert "\n" not in str(caught.value)


def test_a_hub_that_cannot_be_reached_is_told_in_one_sentence(hub):
    hub({})
    with pytest.raises(
        PullError, match=r"hf:maker/tiny-model could not be fetched.*check the network"
    ) as caught:
        pull_from_hub(f"hf:{REPOSITORY}", endpoint="http://127.0.0.1:9")  # the discard port: nobody listens
    assert "\n" not in str(caught.value)


def test_offline_mode_is_told_in_one_sentence(hub, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    url = hub({})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    huggingface_hub = pytest.importorskip("huggingface_hub")
    if hasattr(huggingface_hub, "close_session"):
        huggingface_hub.close_session()  # its HTTP client was made while the mode was off
    try:
        with pytest.raises(PullError, match="HF_HUB_OFFLINE is set"):
            pull_from_hub(f"hf:{REPOSITORY}", endpoint=url)
    finally:
        if hasattr(huggingface_hub, "close_session"):
            huggingface_hub.close_session()


def test_without_the_library_the_extra_is_named(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingLibraryError, match=r"pip install 'haaw\[hub\]'"):
        pull("hf:o/n")


def test_too_little_room_is_said_before_anything_is_fetched(hub, server, monkeypatch):
    shutil = pytest.importorskip("shutil")
    url = hub({**SMALL, "model.safetensors": WEIGHTS})
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(PullError, match=r"needs 3\.0 MB in .*, where 1000 bytes are free"):
        pull_from_hub(f"hf:{REPOSITORY}", endpoint=url)
    assert not any("resolve" in path for path, _ in server.ranges)

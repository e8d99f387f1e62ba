"""Bad input on the command line: status 2, one line on standard error that begins with `haaw: `, no traceback."""

import io
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.gguf_models import tiny_gguf, tiny_gguf_parts, write_gguf

Make = Callable[[Path], list[Any]]


def model(*options: str, **changes: Any) -> Make:
    """A command line for the tiny model, with changed metadata (`llama__block_count=0`)."""

    def make(folder: Path) -> list[Any]:
        metadata, tensors = tiny_gguf_parts()
        named = {key.replace("__", "."): value for key, value in changes.items()}
        return ["run", *options, "--model", write_gguf(folder / "bad.gguf", metadata | named, tensors)]

    return make


def content(data: bytes) -> Make:
    def make(folder: Path) -> list[Any]:
        (folder / "bad.gguf").write_bytes(data)
        return ["run", "hello", "--model", folder / "bad.gguf"]

    return make


def cut(folder: Path) -> list[Any]:
    path = tiny_gguf(folder / "bad.gguf")
    path.write_bytes(path.read_bytes()[:-100])
    return ["run", "hello", "--model", path]


BAD: dict[str, tuple[Make, str]] = {
    "a missing file": (lambda folder: ["run", "hello", "--model", folder / "none.gguf"], "none.gguf"),
    "an unknown name": (lambda folder: ["run", "hello", "--model", "no-such"], "haaw models list"),
    "a folder": (lambda folder: ["run", "hello", "--model", folder], "holds no model"),
    "an endless name": (lambda folder: ["run", "hello", "--model", "a" * 5_000], "aaaa"),
    "an empty file": (content(b""), "empty"),
    "a text": (content(b"once upon a time"), "not a GGUF file"),
    "a pickle": (content(pickle.dumps([1.0])), "pickle"),
    "a cut file": (cut, "incomplete"),
    "another architecture": (model("hello", general__architecture="mamba"), "mamba"),
    "a header that lies": (model("hello", llama__block_count=2**31 - 1), "blk.2"),
    "no prompt": (model(), "no prompt"),
    "an empty prompt": (model("", "--raw"), "no token ids"),
    "a prompt that is too long": (model("x" * 129, "--raw"), "129 tokens"),
    "a prompt that is no text": (model("a\udcff"), "not UTF-8 text"),
    "a chat without a template": (model("hello", "--chat"), "chat template"),
    "a system prompt without a chat": (model("hello", "--raw", "--system", "x"), "system"),
    "a template that fails": (
        model("hello", tokenizer__chat_template="{{ raise_exception('not\ntoday') }}"),
        "not today",
    ),
    "a template that is none": (model("hello", tokenizer__chat_template="{% if %}"), "template"),
    "an unknown form of attention": (model("hello", "--heads", "both"), "together"),
    "a negative limit": (model("hello", "--max-tokens", "-1"), "max_tokens is -1"),
    "a limit that is no number": (model("hello", "--max-tokens", "many"), "--max-tokens"),
    "an empty chunk": (model("hello", "--prefill-chunk", "0"), "prefill_chunk_tokens is 0"),
    "an unknown option": (model("hello", "--no-such"), "--no-such"),
    "an option without its value": (lambda folder: ["run", "hello", "--model"], "--model"),
    "two prompts": (model("hello", "there"), "there"),
    "an unknown command": (lambda folder: ["walk"], "walk"),
    "a file in a folder that is none": (
        lambda folder: ["memory", "--html", str(folder / "no" / "a.html")],
        "a.html",
    ),
    "an unknown model to pull": (lambda folder: ["models", "pull", "no-such"], "no-such"),
}


@pytest.mark.parametrize(("make", "says"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line_and_status_2(make: Make, says: str, tmp_path: Path, run_haaw) -> None:
    status, out, error = run_haaw(*make(tmp_path))
    assert (status, out) == (2, "")
    assert error.startswith("haaw: ")
    assert error.endswith("\n")
    assert error.count("\n") == 1
    assert says in error
    assert len(error) < 600


def test_standard_input_that_is_no_text_is_refused(run_haaw, tiny_file, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9")))
    status, out, error = run_haaw("run", "-", "--model", tiny_file)
    assert (status, out) == (2, "")
    assert error == "haaw: standard input is not UTF-8 text (byte 3); convert it first\n"


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on a process's memory")
def test_a_process_of_its_own_shows_no_traceback_and_needs_little_memory(start_haaw, tmp_path: Path) -> None:
    """The same under a limit of 1 GB of address space, for a header whose sizes would need terabytes."""
    arguments = model("hello", llama__vocab_size=10**9, llama__embedding_length=10**9)(tmp_path)
    limit = tmp_path / "limited"
    limit.mkdir()
    (limit / "sitecustomize.py").write_text(
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
    )
    process = start_haaw(*arguments, PYTHONPATH=str(limit))
    out, error = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, b"")
    assert error.startswith(b"haaw: ")
    assert error.count(b"\n") == 1
    assert b"token_embd.weight" in error

"""`haaw run`: text and nothing else on standard output, the rest on standard error, an exit status that tells."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import haaw

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def model(tiny_file: Path):
    return haaw.load(tiny_file)


def test_the_text_goes_to_standard_output_and_the_rest_to_standard_error(run_haaw, model, tiny_file) -> None:
    status, out, error = run_haaw("run", "hello", "--model", tiny_file, "--max-tokens", 12)
    answer = model.generate("hello", max_tokens=12)
    assert (status, out) == (0, answer.text + "\n")
    assert "length (max_tokens 12)" in error
    assert f"{len(answer.prompt_ids)} prompt + 12 new tokens" in error


def test_json_is_one_object_with_everything_about_the_answer(run_haaw, model, tiny_file) -> None:
    status, out, error = run_haaw("run", "hello", "--model", tiny_file, "--max-tokens", 12, "--json")
    told, answer = json.loads(out), model.generate("hello", max_tokens=12)
    assert status == 0
    assert told["text"] == answer.text
    assert told["prompt_ids"] == list(answer.prompt_ids)
    assert told["token_ids"] == list(answer.token_ids)
    assert told["finish"] == {"reason": "length", "evidence": {"max_tokens": 12}, "complete": False}
    prompt_tokens = len(answer.prompt_ids)
    assert told["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 12,
        "total_tokens": prompt_tokens + 12,
    }
    timing = told["timing"]
    assert set(timing) == {"prepare", "queue", "prefill", "decode", "deliver", "total", "first_token"}
    phases = sum(timing[phase] for phase in ("prepare", "queue", "prefill", "decode", "deliver"))
    assert timing["total"] == pytest.approx(phases)
    assert 0 < timing["first_token"] <= timing["total"]
    assert error == ""


@pytest.mark.parametrize(
    ("options", "form", "system"),
    [
        ([], "chat", None),
        (["--chat"], "chat", None),
        (["--raw"], "raw", None),
        (["--system", "Be brief."], "chat", "Be brief."),
    ],
)
def test_the_form_of_the_prompt_is_as_asked(options, form, system, run_haaw, model, tiny_file) -> None:
    _, out, _ = run_haaw("run", "hello", "--model", tiny_file, "--max-tokens", 0, "--json", *options)
    assert tuple(json.loads(out)["prompt_ids"]) == model.prepare("hello", form=form, system=system).ids


@pytest.mark.parametrize("heads", ["together", "separate"])
@pytest.mark.parametrize("chunk", [1, 7, 256])
def test_heads_and_chunks_do_not_change_the_answer(heads, chunk, run_haaw, model, tiny_file) -> None:
    options = ("--heads", heads, "--prefill-chunk", chunk, "--max-tokens", 8, "--json")
    _, out, _ = run_haaw("run", "hello", "--model", tiny_file, *options)
    assert tuple(json.loads(out)["token_ids"]) == model.generate("hello", max_tokens=8).token_ids


def test_a_dash_reads_the_prompt_from_standard_input(run_haaw, model, tiny_file, monkeypatch) -> None:
    text = "Grüße\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    status, out, _ = run_haaw("run", "-", "--model", tiny_file, "--max-tokens", 3, "--json")
    assert status == 0
    assert tuple(json.loads(out)["prompt_ids"]) == model.prepare(text).ids


def test_a_full_context_is_no_error(run_haaw, tiny_file) -> None:
    status, out, _ = run_haaw("run", "x" * 128, "--raw", "--model", tiny_file, "--json")
    assert status == 0
    assert json.loads(out)["finish"]["reason"] == "context"
    assert json.loads(out)["token_ids"] == []


def test_a_closed_output_ends_quietly(start_haaw, tiny_file) -> None:
    """`haaw run … | head -c 5` must neither complain nor count as a failure."""
    for arguments in (["run", "hello", "--model", tiny_file, "--max-tokens", 100], ["models", "list"]):
        with start_haaw(*arguments) as process:
            process.stdout.close()
            error = process.stderr.read()
            assert process.wait(TIMEOUT_S) == 0
        assert error == b""


def test_an_interrupt_in_mid_answer_keeps_the_text_and_says_so(start_haaw, model, tiny_file) -> None:
    whole = model.generate("hello", max_tokens=104, form="raw")
    process = start_haaw(
        "run", "hello", "--raw", "--model", tiny_file, "--max-tokens", 104, "--heads", "separate",
        PYTHONPATH=str(Path(__file__).parent / "slow"),
    )  # fmt: skip
    first = os.read(process.stdout.fileno(), 1_000)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=TIMEOUT_S)
    text = (first + out).decode()
    assert process.returncode == 130
    assert text.endswith("\n")
    assert len(text) > 1
    assert whole.text.startswith(text[:-1].rstrip("\ufffd"))
    assert text[:-1] != whole.text
    assert "cancelled (by keyboard" in error.decode()
    assert "partial" in error.decode()
    assert "Traceback" not in error.decode()


def test_an_interrupt_under_json_gives_the_partial_answer(start_haaw, tiny_file) -> None:
    process = start_haaw(
        "run", "hello", "--raw", "--model", tiny_file, "--max-tokens", 104, "--json",
        PYTHONPATH=str(Path(__file__).parent / "slow"), HAAW_TEST_TELL="1",
    )  # fmt: skip
    assert process.stderr.readline() == b"step 3\n"
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=TIMEOUT_S)
    told = json.loads(out)
    assert process.returncode == 130
    assert told["finish"] == {
        "reason": "cancelled",
        "evidence": {"by": "keyboard", "phase": told["finish"]["evidence"]["phase"]},
        "complete": False,
    }
    assert told["usage"]["completion_tokens"] == len(told["token_ids"]) >= 2
    assert b"Traceback" not in error


def test_text_that_the_output_cannot_encode_is_spelled_out(start_haaw, tiny_file) -> None:
    """A terminal without UTF-8 must not turn an answer into a traceback; JSON stays JSON."""
    for options, encoding in (([], "ascii"), (["--json"], "latin-1")):
        process = start_haaw(
            "run", "hello", "--model", tiny_file, "--max-tokens", 40, *options, PYTHONIOENCODING=encoding
        )
        out, error = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0
        assert b"Traceback" not in error
        if options:
            assert "\ufffd" in json.loads(out.decode(encoding))["text"]


def test_scores_that_are_no_numbers_end_with_status_3(run_haaw, tmp_path: Path) -> None:
    from support.gguf_models import tiny_gguf_parts, write_gguf

    metadata, tensors = tiny_gguf_parts()
    tensors["blk.0.ffn_up.weight"][:] = 3e38
    path = write_gguf(tmp_path / "huge.gguf", metadata, tensors)
    status, out, error = run_haaw("run", "hello", "--model", path)
    assert (status, out) == (3, "\n")
    assert error.startswith("[failed (error NumericalError")
    assert error.count("\n") == 1


def test_version_and_help_say_what_there_is(run_haaw) -> None:
    assert run_haaw("--version") == (0, f"haaw {haaw.__version__}\n", "")
    for arguments in ([], ["--help"]):
        status, out, error = run_haaw(*arguments)
        assert (status, error) == (0, "")
        assert "run" in out
        assert "models" in out


@pytest.mark.parametrize(
    ("redirection", "status", "told"),
    [
        ("<&-", 2, "standard input is closed"),
        (">/dev/full", 3, "No space left"),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
    ],
)
def test_closed_and_full_channels_give_no_traceback(tiny_file, redirection, status, told):
    """A full disk, and standard channels that whoever started the process has closed, once gave tracebacks."""
    command = f'"{sys.executable}" -m haaw run - --raw --model "{tiny_file}" --max-tokens 2 {redirection}'
    done = subprocess.run(["bash", "-c", command], input=b"hi", capture_output=True, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (status, False), done.stderr
    assert told in done.stderr.decode()


def test_threads_can_be_set(tiny_file, run_haaw):
    assert run_haaw("run", "hi", "--raw", "--model", tiny_file, "--threads", "0")[0] == 2

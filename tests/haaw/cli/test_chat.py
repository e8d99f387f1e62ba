"""`haaw chat` as a person meets it: in a pipe, and at a terminal with Ctrl-C and Ctrl-D.

FAULTS: S25 (history that outgrows the context), S103 (an interrupt stops the answer, not the program).
"""

import contextlib
import io
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.gguf_models import CHAT_TEMPLATE, tiny_gguf, tiny_gguf_parts, write_gguf

import haaw

ROOT = Path(haaw.__file__).parent.parent
LETTERS = b"abcdefghijklmnopqrstuvwxyz"


def write_chatty(path: Path, *, context: int, says: bytes = LETTERS) -> Path:
    """A random model that answers in letters and never comes to an end by itself."""
    metadata, tensors = tiny_gguf_parts(3, template=CHAT_TEMPLATE)
    output_VD = np.zeros_like(tensors["token_embd.weight"])  # a score of 0: some letter's is always higher
    output_VD[list(says)] = np.random.default_rng(3).normal(0, 0.2, (len(says), output_VD.shape[1]))
    tensors["output.weight"] = output_VD
    return write_gguf(path, metadata | {"llama.context_length": context}, tensors)


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chatty(tmp_path_factory.mktemp("models") / "chatty.gguf", context=100_000)


@pytest.fixture
def chat(run_haaw, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, list[str], list[str]]]:
    """`chat(model, lines, *options)`: the exit status, and the lines of standard output and standard error."""

    def run(model: Path, lines: list[str], *options: object) -> tuple[int, list[str], list[str]]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        status, out, error = run_haaw("chat", "--model", model, "--max-tokens", 12, *options)
        return status, out.splitlines(), error.splitlines()

    return run


def test_questions_from_a_pipe_are_answered_one_a_line(chat, chatty: Path) -> None:
    status, answers, remarks = chat(chatty, ["hello", "", "and more"])
    assert status == 0
    assert len(answers) == 2
    assert all(re.fullmatch("[a-z]{12}", answer) for answer in answers)
    assert "/retry" in remarks[0]
    assert all(line.startswith("[length (max_tokens 12) · ") for line in remarks[1:])
    # <|im_start|>, "user", newline, "hello", <|im_end|>, newline, <|im_start|>, "assistant", newline
    assert f"{1 + 4 + 1 + 4 + 1 + 1 + 1 + 9 + 1} prompt + 12 new tokens" in remarks[1]


def test_the_second_answer_knows_of_the_first(chat, chatty: Path) -> None:
    _, (_, after), _ = chat(chatty, ["one", "two"])
    _, (alone,), _ = chat(chatty, ["two"])
    _, (_, again), _ = chat(chatty, ["one", "/reset", "two"])
    assert again == alone != after


def test_commands_answer_on_standard_error(chat, chatty: Path) -> None:
    status, answers, remarks = chat(
        chatty,
        [
            "/stats",
            "one",
            "two",
            "/stats",
            "/reset",
            "/stats",
            "/bogus x",
            "/retry",
            "/help",
            "/exit",
            "three",
        ],
    )
    assert status == 0
    assert len(answers) == 2
    said = [line for line in remarks[1:] if not line.startswith("[")]
    assert said[0] == "nothing was answered yet"
    assert re.fullmatch(
        r"2 answers · 24 new tokens · prefill [\d.]+ s · decode [\d.]+ s · context [\d,]+ of 100,000 tokens",
        said[1],
    )
    assert said[2:4] == ["the conversation is empty again", "nothing was answered yet"]
    assert said[4].startswith("haaw: unknown command /bogus; ")
    assert said[5] == "haaw: nothing was asked yet, so there is nothing to try again"
    assert said[6] == remarks[0]
    assert len(said) == 7


def test_retry_answers_otherwise_and_a_seed_repeats_it(chat, chatty: Path) -> None:
    options = ("--temperature", 1.5, "--seed", 4, "--top-k", 5)
    _, answers, _ = chat(chatty, ["one", "/retry", "/retry"], *options)
    assert len(set(answers)) == 3
    assert chat(chatty, ["one", "/retry", "/retry"], *options)[1] == answers
    _, answers, remarks = chat(chatty, ["one", "/retry"])
    assert len(set(answers)) == 1
    assert any("temperature 0" in line for line in remarks)


def test_the_system_prompt_is_told(chat, chatty: Path) -> None:
    _, kind, _ = chat(chatty, ["one"], "--system", "be kind")
    _, unkind, _ = chat(chatty, ["one"], "--system", "be unkind")
    assert kind != unkind


def test_a_conversation_that_outgrows_the_context_goes_on_after_a_reset(chat, tmp_path: Path) -> None:
    small = write_chatty(tmp_path / "small.gguf", context=100)
    status, answers, remarks = chat(small, ["one", "two", "three", "four", "/reset", "five"])
    refused = [line for line in remarks if "outgrown" in line]
    assert refused[0] == (
        "haaw: the conversation has outgrown the model's context of 100 tokens; "
        "reset it, or ask something shorter (/reset starts anew)"
    )
    assert status == 0
    assert len(answers) + len(refused) == 5
    assert answers[-1] == chat(small, ["five"])[1][0]


BAD = {
    "top-p": (["--top-p", 7], "top_p is 7.0"),
    "temperature": (["--temperature", "nan"], "temperature is nan"),
    "a word": (["--top-k", "many"], "--top-k"),
    "seed": (["--seed", "1.5"], "--seed"),
    "empty stop": (["--stop", ""], "stop has ''"),
    "a stop that is hidden": (["--stop", "x<|im_end|>"], "control token '<|im_end|>'"),
    "max tokens": (["--max-tokens", -1], "max_tokens is -1"),
    "unknown": (["--no-such"], "--no-such"),
}


@pytest.mark.parametrize(("options", "says"), BAD.values(), ids=BAD.keys())
def test_impossible_options_are_refused_before_the_first_question(options, says, chat, chatty: Path) -> None:
    """They were refused at every question."""
    status, answers, remarks = chat(chatty, ["one"], *options)
    assert (status, answers) == (2, [])
    assert len(remarks) == 1
    assert remarks[0].startswith("haaw: ")
    assert says in remarks[0]


def test_a_model_without_a_template_is_refused(chat, tmp_path: Path) -> None:
    status, _, remarks = chat(tiny_gguf(tmp_path / "plain.gguf"), ["one"])
    assert status == 2
    assert len(remarks) == 1
    assert "no chat template" in remarks[0]


def test_options_that_change_nothing_are_remarked(chat, chatty: Path) -> None:
    remarks = chat(chatty, [], "--top-k", 5, "--seed", 1)[2]
    assert remarks[0] == "note: --top-k, --seed change nothing at temperature 0; add --temperature 1 to draw"


def test_a_pipe_that_is_not_utf8_is_bad_input(start_haaw, chatty: Path) -> None:
    process = start_haaw(
        "chat", "--model", chatty, PYTHONUTF8="0", LC_ALL="C.UTF-8", PYTHONIOENCODING="utf-8:strict"
    )
    out, error = process.communicate(b"caf\xe9\n", timeout=60)
    assert (process.returncode, out) == (2, b"")
    assert error.splitlines()[-1] == b"haaw: standard input is not UTF-8 text; convert it first"


# --- at a terminal

PROMPT = "\n>"
CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>78]|\r")
# The program gets the terminal as its controlling one, so that Ctrl-C typed there becomes an interrupt.
LAUNCH = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, sys.argv[1:])"


class Terminal:
    """A program at a terminal: type, and wait for what appears."""

    def __init__(self, *arguments: object) -> None:
        self._master, slave = pty.openpty()
        environment = {name: value for name, value in os.environ.items() if name != "HAAW_CHECK_SHAPES"}
        environment |= {"OPENBLAS_NUM_THREADS": "1", "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        command = [sys.executable, "-m", "haaw", *map(str, arguments)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *command],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True, cwd=ROOT, env=environment,
        )  # fmt: skip
        os.close(slave)
        self.shown = ""

    def type(self, text: str) -> None:
        self.shown = ""
        os.write(self._master, text.encode())

    def wait_for(self, pattern: str, *, within_s: float = 60) -> str:
        """Everything shown since the last typing, once it matches."""
        until = time.monotonic() + within_s
        while not re.search(pattern, self.shown, re.DOTALL):
            left_s = until - time.monotonic()
            ready, _, _ = select.select([self._master], [], [], max(0, left_s))
            if not ready:
                raise AssertionError(f"no {pattern!r} in {self.shown!r}")
            self.shown += self._read()
        return self.shown

    def _read(self) -> str:
        try:
            data = os.read(self._master, 65_536)
        except OSError as error:  # the other side is closed
            raise AssertionError(f"the program has ended: {self.shown!r}") from error
        return CONTROL.sub("", data.decode("utf-8", "replace"))

    def ends_with(self, *, within_s: float = 60) -> int:
        """The exit status; reads on, so that the program cannot hang on a full terminal."""
        with contextlib.suppress(AssertionError):
            self.wait_for("(?!)", within_s=within_s)
        return self.process.wait(timeout=within_s)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(chatty: Path) -> Iterator[Terminal]:
    """`haaw chat` at its first prompt, with answers that take minutes."""
    terminal = Terminal("chat", "--model", chatty, "--max-tokens", 90_000)
    try:
        terminal.wait_for(PROMPT)
        yield terminal
    finally:
        terminal.close()


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal: Terminal) -> None:
    for question in ("hello", "again"):
        terminal.type(question + "\r")
        terminal.wait_for("[a-z]{80}")
        terminal.type("\x03")
        shown = terminal.wait_for(r"\[cancelled.*" + PROMPT)
        assert re.search(r"\[cancelled \(by keyboard, phase \w+\) .* partial\]", shown)
        assert "Traceback" not in shown
    terminal.type("/stats\r")
    assert "2 answers" in terminal.wait_for("2 answers .*" + PROMPT)
    terminal.type("\x04")
    assert terminal.ends_with() == 0


def test_ctrl_c_at_the_prompt_says_how_to_leave(terminal: Terminal) -> None:
    terminal.type("half a quest")
    terminal.wait_for("half a quest")
    terminal.type("\x03")
    terminal.wait_for(r"\(Ctrl-D or /exit leaves\)\s*" + PROMPT)
    terminal.type("/exit\r")
    assert terminal.ends_with() == 0


def test_an_answer_of_the_terminal_cannot_control_it(tmp_path: Path) -> None:
    """A model that writes escape characters: they are spelled out."""
    rude = write_chatty(tmp_path / "rude.gguf", context=100, says=bytes(range(32)))
    terminal = Terminal("chat", "--model", rude, "--max-tokens", 30)
    try:
        terminal.wait_for(PROMPT)
        terminal.type("hello\r")
        shown = terminal.wait_for(r"\[length.*" + PROMPT)
        assert len(re.findall(r"\\x[01][0-9a-f]", shown)) > 15
        assert not re.search(r"[\x00-\x08\x0b-\x1f]", shown.partition("[length")[0])
    finally:
        terminal.close()

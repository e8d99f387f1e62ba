"""`break_at` stops ordinary debuggers inside the plain function, with the arrays in hand. Each is really driven."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.debug_adapter import AdapterClient

import haaw
from haaw.ops.stop import SKIPPED

ROOT = Path(haaw.__file__).parent.parent
TIMEOUT_S = 180  # a loaded machine starts Python slowly
PROMPT = [5, 9, 2]
SCRIPT = f"""
from support.tiny_models import tiny_language_model
import haaw

model = tiny_language_model(1)
with haaw.break_at(op="softmax", layer=1, stage="decode", step=2) as point:
    answer = model.generate({PROMPT}, max_tokens=5)
print("answer", answer.token_ids, point.hits)
"""
# the third token of the answer is chosen by decode step 2: 3 ids of the prompt and 2 of the answer are held
EXPECTED_SHAPE = "(4, 1, 5)"


def environment(**more: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("HAAW_CHECK_SHAPES", "PYTHONBREAKPOINT")
    }
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent.parent)])
    return kept | {"PYTHONPATH": path, "PYDEVD_DISABLE_FILE_VALIDATION": "1"} | more


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "lesson.py"
    path.write_text(SCRIPT)
    return path


def driven(script: Path, commands: list[str], **more: str) -> str:
    done = subprocess.run(
        [sys.executable, str(script)],
        input="\n".join([*commands, ""]),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment(**more),
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def answer_of(output: str) -> list[int]:
    found = re.search(r"answer \((.*?)\) 1", output)
    assert found, output
    return [int(number) for number in found.group(1).split(",")]


def undisturbed() -> list[int]:
    from support.tiny_models import tiny_language_model

    return list(tiny_language_model(1).generate(PROMPT, max_tokens=5).token_ids)


@pytest.mark.parametrize("checks", ["shapes checked", "shapes not checked"])
def test_pdb_stops_on_the_first_line_of_the_plain_function(script, checks):
    more = {"HAAW_CHECK_SHAPES": "1"} if checks == "shapes checked" else {}
    output = driven(
        script,
        ["p scores_HTS.shape", "p scores_HTS.dtype.name", "n", "p xp.__name__", "c"],
        **more,
    )
    assert re.search(r"> .*attention\.py\(\d+\)softmax\(\)", output), output
    assert EXPECTED_SHAPE in output
    assert "'float32'" in output
    assert "'numpy'" in output
    assert answer_of(output) == undisturbed()


def test_pdb_may_change_an_array_and_the_run_goes_on_with_it(script):
    """The arrays in hand are those of the run, not copies of it."""
    output = driven(script, ["scores_HTS[:] = 0", "p scores_HTS.any()", "r", "p __return__.max()", "c"])
    assert re.search(r"0\.2\d*", output), output  # five equal weights
    assert len(answer_of(output)) == 5


def test_pdb_walks_past_the_decorator_of_an_operation(tmp_path):
    script = tmp_path / "call.py"
    script.write_text(
        "import pdb\nimport numpy as np\nfrom haaw.ops.norms import rms_norm\n"
        "x_TD, weight_D = np.ones((2, 3), np.float32), np.ones(3, np.float32)\n"
        'print("result", pdb.Pdb(skip=["haaw.ops.op"]).runcall(rms_norm, x_TD, weight_D, eps=1e-5).shape)\n'
    )
    output = driven(script, ["p x_TD.shape, weight_D.shape, eps", "c"])
    assert re.search(r"> .*norms\.py\(\d+\)rms_norm\(\)", output), output
    assert "((2, 3), (3,), 1e-05)" in output
    assert "op.py" not in output
    assert "result (2, 3)" in output


@pytest.mark.parametrize("checks", ["0", "1"])
def test_ipython_passes_over_the_decorator_when_it_steps_in(tmp_path, checks):
    pytest.importorskip("IPython")
    script = tmp_path / "call.py"
    script.write_text(
        "import numpy as np\nfrom haaw.ops.norms import rms_norm\n"
        "x_TD, weight_D = np.ones((2, 3), np.float32), np.ones(3, np.float32)\n"
        "def lesson():\n    breakpoint()\n    return rms_norm(x_TD, weight_D, eps=1e-5)\n"
        'print("result", lesson().shape)\n'
    )
    output = driven(
        script, ["s", "p x_TD.shape", "c"], HAAW_CHECK_SHAPES=checks,
        PYTHONBREAKPOINT="IPython.core.debugger.set_trace", IPYTHONDIR=str(tmp_path), NO_COLOR="1",
    )  # fmt: skip
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    assert re.search(r"norms\.py\W*\(\d+\)\W*rms_norm", plain), plain
    assert not re.search(r"ops/(op|shapes)\.py\W*\(\d+\)", plain), plain
    assert "(2, 3)" in plain


def test_ipython_stops_for_break_at_one_step_before_the_plain_function(script, tmp_path):
    pytest.importorskip("IPython")
    output = driven(
        script, ["s", "p scores_HTS.shape", "c"],
        PYTHONBREAKPOINT="IPython.core.debugger.set_trace", IPYTHONDIR=str(tmp_path), NO_COLOR="1",
    )  # fmt: skip
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    assert re.search(r"attention\.py\W*\(\d+\)\W*softmax", plain), plain
    assert EXPECTED_SHAPE in plain
    assert answer_of(plain) == undisturbed()


# debugpy, the debugger of VS Code and of JupyterLab.


def launch_json() -> dict[str, Any]:
    """The example that the documentation shows."""
    text = (ROOT / "docs" / "debuggers.md").read_text()
    found = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert found
    return json.loads(found.group(1))["configurations"][0]


@pytest.fixture
def debugged(script: Path) -> Iterator[tuple[AdapterClient, list[str]]]:
    pytest.importorskip("debugpy")
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    command = [
        sys.executable,
        "-Xfrozen_modules=off",
        "-m",
        "debugpy",
        "--listen",
        f"127.0.0.1:{port}",
        "--wait-for-client",
        str(script),
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    )
    lines: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(target=lambda: lines.extend(process.stdout or ()))
    reader.start()
    client = AdapterClient(port, timeout_s=TIMEOUT_S)
    try:
        yield client, lines
        process.wait(TIMEOUT_S)
    finally:
        client.close()
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()


def attach(client: AdapterClient, **settings: Any) -> None:
    client.request("initialize", adapterID="debugpy", clientID="tests", linesStartAt1=True, pathFormat="path")
    attached = client.send("attach", **settings)
    client.event("initialized")
    client.request("configurationDone")
    client.answer(attached)


def top_frame(client: AdapterClient, thread: int) -> dict[str, Any]:
    return client.request("stackTrace", threadId=thread, startFrame=0, levels=1)["stackFrames"][0]


def test_debugpy_stops_in_the_stop_module_and_steps_into_the_plain_function(debugged):
    client, lines = debugged
    attach(client, justMyCode=launch_json()["justMyCode"], rules=launch_json()["rules"])
    thread = client.event("stopped")["threadId"]
    frame = top_frame(client, thread)
    assert frame["source"]["path"].endswith("stop.py"), frame
    client.request("stepIn", threadId=thread)
    client.event("stopped")
    frame = top_frame(client, thread)
    assert (Path(frame["source"]["path"]).name, frame["name"]) == ("attention.py", "softmax"), frame
    shape = client.request("evaluate", expression="scores_HTS.shape", frameId=frame["id"], context="watch")
    assert shape["result"] == EXPECTED_SHAPE
    scopes = client.request("scopes", frameId=frame["id"])["scopes"]
    shown = client.request("variables", variablesReference=scopes[0]["variablesReference"])["variables"]
    assert "scores_HTS" in [variable["name"] for variable in shown]
    client.request("continue", threadId=thread)
    client.event("terminated")
    client.send("disconnect")
    wait_for(lines, "answer")
    assert answer_of("".join(lines)) == undisturbed()


def wait_for(lines: list[str], word: str) -> None:
    import time

    end_s = time.monotonic() + TIMEOUT_S
    while not any(word in line for line in lines):
        assert time.monotonic() < end_s, lines
        time.sleep(0.05)


def test_the_documented_rules_exclude_the_modules_that_debuggers_pass_over():
    excluded = {rule["module"] for rule in launch_json()["rules"] if rule["include"] is False}
    assert excluded == set(SKIPPED)


def test_pdb_goes_up_to_the_layer_and_the_model(script):
    output = driven(script, ["u", "u", "u", "w", "p layer", "c"])
    assert re.search(r"attention\.py\(\d+\)_attend\(\)", output), output
    assert re.search(r"llama\.py\(\d+\)forward\(\)", output), output


def test_quitting_pdb_ends_the_run_and_is_no_fault_of_an_operation(script):
    """`q` once made the operation return None, and the next one failed."""
    done = subprocess.run(
        [sys.executable, str(script)], input="q\n", capture_output=True, text=True, timeout=TIMEOUT_S,
        env=environment(), check=False,
    )  # fmt: skip
    assert "BdbQuit" in done.stderr
    assert "AttributeError" not in done.stderr


def test_a_breakpoint_that_was_never_reached_says_so():
    from support.tiny_models import tiny_language_model

    with pytest.warns(UserWarning, match="never reached: <breakpoint softmax \\(layer=99\\)"):
        with haaw.break_at(op="softmax", layer=99):
            tiny_language_model(1).generate(PROMPT, max_tokens=1)


@pytest.mark.parametrize("place", [{"stage": "decod"}, {"layer": -1}, {"layer": "3"}, {"step": True}])
def test_an_impossible_place_is_refused_by_name(place):
    with pytest.raises(haaw.BadInputError, match=next(iter(place))):
        haaw.break_at(op="softmax", **place)


def test_every_breakpoint_that_fits_counts_a_hit(monkeypatch):
    from support.tiny_models import tiny_language_model

    monkeypatch.setattr("haaw.ops.breakpoints.stop_in", lambda plain, args, kwargs: plain(*args, **kwargs))
    with haaw.break_at(op="softmax") as wide, haaw.break_at(op="softmax", layer=0) as narrow:
        tiny_language_model(1).generate(PROMPT, max_tokens=1)
    assert wide.hits > narrow.hits == 1

"""`haaw view` and `haaw export` as a person runs them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from support.story_fixture import recorded

from haaw.cli.main import main


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("trace"), keep="replayable", max_tokens=4).trace.path


@pytest.fixture
def viewing(trace):
    """`haaw view` in a process of its own, and the address that it printed."""
    command = [sys.executable, "-m", "haaw", "view", str(trace), "--no-browser"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    yield process, re.search(r"http://\S+", line)[0]
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_it_serves_until_ctrl_c_and_then_ends_at_once(viewing):
    process, address = viewing
    assert b"page/main.js" in urllib.request.urlopen(address, timeout=10).read()
    waiting = urllib.request.urlopen(address, timeout=10)  # a browser that keeps its connection
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 0
    assert time.monotonic() - began < 5
    assert "Traceback" not in process.stderr.read()
    waiting.close()


@pytest.mark.browser
def test_the_page_fetches_what_is_looked_at_and_computes_it_again(viewing, chromium):
    _, address = viewing
    page = chromium.new_page()
    asked, seen = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: seen.append(message.text))
    page.on("pageerror", lambda error: seen.append(str(error)))
    page.goto(f"{address}#stage=decode&step=2&layer=1&head=1")
    page.locator("html[data-warm=true]").wait_for(state="attached")
    page.locator("#decode .looked-at li").first.wait_for()
    page.evaluate("haaw.store.go({ look: 'decode 2/layer 1/mlp.activated' })")
    page.locator("dialog.closer .badge").wait_for()
    assert page.locator("dialog.closer .badge").inner_text() == "recomputed"
    assert page.locator("dialog.closer").get_by_text("The code that ran").count() == 1
    assert all(url.startswith((address, "data:")) for url in asked)
    assert any("value?path=" in url for url in asked)
    assert seen == []
    page.close()


@pytest.mark.browser
def test_a_server_that_has_gone_leaves_a_sentence(viewing, chromium):
    process, address = viewing
    page = chromium.new_page()
    page.goto(f"{address}#stage=tokens")
    page.locator("html[data-warm=true]").wait_for(state="attached")
    page.wait_for_timeout(300)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=10)
    page.evaluate("haaw.store.go({ stage: 'decode', step: 3, layer: 2 }, 'jump')")
    page.locator("#decode .gap").first.wait_for()
    assert "does not answer any more" in page.locator("#decode .gap").first.inner_text()
    page.close()


def test_export_writes_one_file(trace, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["export", str(trace), "--html", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert "Content-Security-Policy" in text
    assert not re.search(r'(?:src|href)="(?!data:,)', text)
    assert str(out) in capsys.readouterr().err


def test_trace_export_to_html_writes_the_same_page(trace, tmp_path, capsys):
    pages = tmp_path / "a.html", tmp_path / "b.html"
    assert main(["export", str(trace), "--html", str(pages[0])]) == 0
    assert main(["trace", "export", str(trace), str(pages[1]), "--to", "html", "--json"]) == 0
    assert pages[0].read_bytes() == pages[1].read_bytes()
    assert json.loads(capsys.readouterr().out) == {"html": str(pages[1]), "bytes": pages[1].stat().st_size}
    for option in (["--step", "decode 1"], ["--recompute"]):
        assert main(["trace", "export", str(trace), str(pages[1]), "--to", "html", *option]) == 2
    assert main(["trace", "export", str(trace), str(trace), "--to", "html"]) == 2
    assert "name of its own" in capsys.readouterr().err


@pytest.mark.parametrize("to", ["npz", "html"])
def test_a_folder_that_is_not_there_gives_a_sentence(trace, tmp_path, capsys, to):
    assert main(["trace", "export", str(trace), str(tmp_path / "no" / "out"), "--to", to]) in (1, 2)
    assert capsys.readouterr().err.count("\n") == 1


def test_a_port_in_use_gives_a_sentence(trace, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["view", str(trace), "--no-browser", "--port", str(port)]) == 2
    assert f"port {port} cannot be used" in capsys.readouterr().err


@pytest.mark.browser
@pytest.mark.parametrize("kind", ["cut", "absent model"])
def test_what_half_a_trace_or_one_without_its_model_has_is_shown_and_the_rest_says_why(
    trace, source, tmp_path, opened, kind
):
    import haaw
    from haaw.view.export import export_html
    from haaw.view.source import TraceSource

    file, model = trace, None
    if kind == "cut":
        file = tmp_path / "cut.haaw"
        whole = source.trace.path.read_bytes()
        file.write_bytes(whole[: len(whole) * 2 // 3])
    else:
        model = tmp_path / "no-such-model.gguf"
    page = opened(export_html(TraceSource(haaw.open_trace(file, model)), tmp_path / "page.html"))
    assert "Tokens" in page.locator("#tokens h2").inner_text()
    assert page.locator("#tokens .chip").count() > 5
    if kind == "cut":
        assert "cut off before the request ended" in page.locator("#end .gap").inner_text()
        assert "cut off" in page.locator("header.top .gap").inner_text()
    else:
        page.evaluate("haaw.store.go({ stage: 'choose', step: 1 }, 'jump')")
        assert "no-such-model" in page.locator("#choose .gap").first.inner_text()


@pytest.mark.browser
@pytest.mark.filterwarnings("ignore:the trace run.haaw ends after")
def test_the_page_of_a_trace_whose_budget_was_spent_says_so(tmp_path, opened):
    from support.story_fixture import recorded

    from haaw.view.export import export_html

    page = opened(export_html(recorded(tmp_path, budget="300kB"), tmp_path / "page.html"))
    assert "since its budget of 300 kB was spent" in page.locator("header.top .gap").first.inner_text()


@pytest.mark.browser
def test_a_browser_without_scripts_gets_a_sentence(trace, tmp_path, chromium):
    from haaw.cli.view import write_page

    write_page(trace, tmp_path / "page.html")
    page = chromium.new_context(java_script_enabled=False).new_page()
    page.goto((tmp_path / "page.html").as_uri())
    assert "needs a browser that runs JavaScript modules" in page.locator("body").inner_text()
    page.context.close()


def test_export_never_writes_over_the_trace(trace, capsys):
    before = trace.read_bytes()
    assert main(["export", str(trace), "--html", str(trace)]) == 2
    assert trace.read_bytes() == before
    assert "name of its own" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["view"], ["export", "--html", "out.html"]])
def test_what_is_no_trace_gives_a_sentence(tmp_path, capsys, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no.haaw").write_bytes(b"not a trace")
    for name in ("no.haaw", "absent.haaw"):
        status = main([command[0], name, *command[1:]])
        assert status in (2, 3)
        assert capsys.readouterr().err.count("\n") == 1
    assert not os.path.exists("out.html")


def test_a_request_that_is_not_there_gives_a_sentence(trace, tmp_path, capsys):
    assert main(["export", str(trace), "--html", str(tmp_path / "x.html"), "--request", "9"]) == 2
    assert "no request 9" in capsys.readouterr().err


def test_a_model_that_is_absent_leaves_what_the_trace_itself_holds(trace, tmp_path):
    import haaw
    from haaw.view.content import Content
    from haaw.view.source import TraceSource

    content = Content(TraceSource(haaw.open_trace(trace, tmp_path / "no-such-model.gguf")))
    assert content.story["text"]
    assert "no-such-model" in content.step("decode", 1)["why_no_choice"]

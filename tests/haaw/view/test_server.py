"""`haaw view` answers to this machine alone, under a random word, and says in a sentence what it cannot do."""

import base64
import http.client
import json
import socket

import numpy as np
import pytest

from haaw.errors import BadInputError
from haaw.view.server import TraceServer


def ask(server, path, *, method="GET", host=None, word=True):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, f"/{server.word}/{path}" if word else path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_page_and_its_modules_are_served(server):
    answer, body = ask(server, "")
    assert answer.status == 200
    assert b'src="page/main.js"' in body
    answer, body = ask(server, "page/main.js")
    assert answer.getheader("Content-Type").startswith("text/javascript")
    assert b"class Page" in body


def test_nothing_is_stored_and_no_other_origin_may_read(server):
    answer, _ = ask(server, "story")
    assert answer.getheader("Cache-Control") == "no-store"
    assert answer.getheader("Cross-Origin-Resource-Policy") == "same-origin"
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert "default-src 'none'" in answer.getheader("Content-Security-Policy")
    assert answer.getheader("Access-Control-Allow-Origin") is None


def test_a_value_has_the_numbers_of_the_trace(server, source):
    path = "decode 5/layer 1/attention.weights"
    _, body = ask(server, f"value?path={path.replace(' ', '%20')}&head=1")
    said = json.loads(body)
    numbers = np.frombuffer(base64.b64decode(said["data"]), "<f4").reshape(said["shape"])
    np.testing.assert_array_equal(numbers, source.value(path).array[1])
    assert (said["axes"], said["badge"]) == ("TS", "recorded")


@pytest.mark.parametrize(
    "host", ["example.org", "localhost", "127.0.0.1", "127.0.0.1:1", "localhost:80@evil"]
)
def test_another_host_name_is_refused(server, host):
    answer, body = ask(server, "story", host=host)
    assert answer.status == 403
    assert b"127.0.0.1" in body


def test_localhost_with_the_port_is_the_same_machine(server):
    assert ask(server, "story", host=f"localhost:{server.server_port}")[0].status == 200


@pytest.mark.parametrize("path", ["/", "/story", "/wrong/story", "/page/main.js", "//", "/%00/"])
def test_without_the_random_word_there_is_nothing(server, path):
    assert ask(server, path, word=False)[0].status == 404


@pytest.mark.parametrize(
    "path",
    [
        "page/../server.py",
        "page/..%2fserver.py",
        "page//etc/passwd",
        "page/",
        "page/nothing.js",
        "elsewhere",
        "../",
    ],
)
def test_no_other_file_can_be_had(server, path):
    answer, body = ask(server, path)
    assert answer.status == 404
    assert "error" in json.loads(body)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE"])
def test_only_get_is_answered(server, method):
    assert ask(server, "story", method=method)[0].status == 501


@pytest.mark.parametrize(
    "path",
    [
        "value?path=decode%205/layer%201/attention.nothing",
        "value?path=",
        "value",
        "value?path=decode%20999999/x",
        "step?stage=decode&step=999",
        "step?stage=decode&step=-1",
        "step?stage=decode",
        "step",
    ],
)
def test_what_the_trace_does_not_have_gives_a_sentence(server, path):
    answer, body = ask(server, path)
    assert answer.status == 404
    assert json.loads(body)["error"].startswith("the trace has no")


def test_a_head_that_is_not_there_gives_a_sentence(server):
    answer, body = ask(server, "value?path=decode%205/layer%201/attention.weights&head=99")
    assert answer.status == 409
    assert "head" in json.loads(body)["error"]


def test_a_port_that_is_taken_gives_a_sentence(source):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(BadInputError, match=f"port {port} cannot be used.*--port"):
            TraceServer(source, port=port)


@pytest.mark.parametrize("port", [-1, 65_536])
def test_an_impossible_port_gives_a_sentence(source, port):
    with pytest.raises(BadInputError, match="from 0"):
        TraceServer(source, port=port)


def test_two_servers_have_different_words(source):
    with TraceServer(source) as one, TraceServer(source) as other:
        assert one.word != other.word
        assert len(one.word) >= 20

"""A child program that works inside the installed pip: finds one wheel on the index, or sends its bytes.

Run as a file, `python pip_fetch.py`, with one JSON object on standard input.
`{"find": "NAME", "version": "V"}` writes one line of JSON: `url`, `sha256`.
`{"send": URL, "offset": N}` writes one line of JSON (`status`, `first_byte`, `total_bytes`) and then the
bytes of the file from N on.

pip's own finder and session do the work, so that its index, credentials, proxies, certificates, trusted hosts
and timeouts apply, and nothing but the index page is fetched to find a file (`pip install --dry-run` of pip
before 23.3 fetches the whole wheel). They are not a public interface of pip: where they do not fit, the exit
status is `NOT_THIS_PIP`, and the caller uses `pip download` instead, which cannot resume.
"""

import importlib
import json
import logging
import sys
from typing import Any

NOT_THIS_PIP = 3
CHUNK_BYTES = 1 << 18


class LastReason(logging.Handler):
    """Keeps why pip last skipped a page of the index, which it says in its debug log only."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the reason alone: the address before it may hold a password."""
        if str(record.msg).startswith("Could not fetch URL") and isinstance(record.args, tuple):
            self.text = str(record.args[-1])


def find(command: Any, options: Any, session: Any, name: str, version: str) -> int:
    """Write where the index has the wheel; 1 with a line on standard error when it has none."""
    log = logging.getLogger("pip")
    reason = LastReason()
    log.addHandler(reason)
    log.setLevel(logging.DEBUG)
    finder = command._build_package_finder(options, session)
    specifiers: Any = importlib.import_module("pip._vendor.packaging.specifiers")
    best = finder.find_best_candidate(name, specifiers.SpecifierSet(f"=={version}")).best_candidate
    if best is None:
        print(reason.text or f"No matching distribution found for {name}=={version}", file=sys.stderr)
        return 1
    link = best.link
    sha256 = link.hash if link.hash_name == "sha256" else None
    print(json.dumps({"url": link.url_without_fragment, "sha256": sha256}))
    return 0


def total_bytes(response: Any) -> int | None:
    """Return the size of the whole file: after the slash of `Content-Range`, else `Content-Length`."""
    headers = response.headers
    size = headers.get("Content-Range", "").rpartition("/")[2] if response.status_code in (206, 416) else ""
    size = size or headers.get("Content-Length", "")
    return int(size) if size.isdecimal() else None


def first_byte(response: Any) -> int:
    """Return where the sent bytes start: 0, or FIRST of `Content-Range: bytes FIRST-LAST/SIZE`."""
    if response.status_code != 206:
        return 0
    start = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(start) if start.isdecimal() else -1


def send(session: Any, url: str, offset: int) -> int:
    """Ask for the file from byte `offset` on, write the line of JSON and then what comes."""
    # no-store: pip's own cache may answer, but a second copy of a whole model is not left in it.
    headers = {"Accept-Encoding": "identity", "Cache-Control": "no-store"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    response = session.get(url, headers=headers, stream=True)
    head = {
        "status": response.status_code,
        "first_byte": first_byte(response),
        "total_bytes": total_bytes(response),
    }
    out = sys.stdout.buffer
    out.write(json.dumps(head).encode() + b"\n")
    out.flush()
    if response.status_code in (200, 206):
        # decode_content=False: a wheel is a compressed file already, its bytes are wanted as they are.
        for chunk in response.raw.stream(CHUNK_BYTES, decode_content=False):
            out.write(chunk)
            out.flush()
    return 0


def main(request: dict[str, Any]) -> int:
    """Do what the request says; 0 when all was done, 1 when it failed, or `NOT_THIS_PIP`."""
    try:
        command: Any = importlib.import_module("pip._internal.commands").create_command("download")
        options, _ = command.parse_args(["--no-input", "--quiet", "--only-binary=:all:", "none"])
        with command.main_context():
            session = command.get_default_session(options)
            if "find" in request:
                return find(command, options, session, request["find"], request["version"])
            return send(session, request["send"], request["offset"])
    except (ImportError, AttributeError, TypeError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1 if "No module named 'pip'" in str(error) else NOT_THIS_PIP
    except Exception as error:  # pip, requests and urllib3 each have their own; the caller shows the words
        print((f"{type(error).__name__}: {error}").splitlines()[0], file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(json.load(sys.stdin)))

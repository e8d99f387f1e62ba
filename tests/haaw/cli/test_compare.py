"""`haaw compare`: a table on standard output, and an exit status that says whether anything differs."""

import json

import pytest


def test_equal_kinds_end_with_status_0_and_a_line_each(run_haaw, tiny_file) -> None:
    status, out, _ = run_haaw(
        "compare", "hello", "--model", tiny_file, "--caches", "none,dynamic,static", "--max-tokens", 4
    )
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["none", "dynamic", "static"]


def test_a_difference_ends_with_status_1_and_json_says_where(run_haaw) -> None:
    status, out, _ = run_haaw(
        "compare", "Once upon a time", "--caches", "dynamic,sliding", "--cache-option", "sliding.window=4",
        "--max-tokens", 24, "--json",
    )  # fmt: skip
    rows = json.loads(out)["rows"]
    assert status == 1
    assert rows[1]["parting"]["step"] >= 0
    assert not rows[1]["same_ids"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--caches", "dynamic"), "two or more"),
        (("--caches", "dynamic,magic"), "magic"),
        (("--caches", "dynamic,static", "--cache-option", "window=3"), "KIND.NAME=VALUE"),
        (("--caches", "dynamic,static", "--cache-option", "paged.block_size=3"), "KIND.NAME=VALUE"),
        (("--caches", "dynamic,static", "--cache-option", "static.wings=3"), "wings"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(run_haaw, tiny_file, arguments, named) -> None:
    status, out, error = run_haaw("compare", "hello", "--model", tiny_file, *arguments)
    assert (status, out) == (2, "")
    assert named in error
    assert len(error.splitlines()) == 1

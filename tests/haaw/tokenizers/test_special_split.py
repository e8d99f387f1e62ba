"""Cutting a text at control tokens."""

from haaw.tokenizers.special_split import Run, SpecialSplitter


def runs(splitter: SpecialSplitter, text: str, markup: str | None = None) -> list[tuple[str, int | None]]:
    """The runs' texts and ids; `markup` has a 1 for each character that may be read as markup."""
    trusted = bytes(int(flag) for flag in (markup or "1" * len(text)))
    return [(text[run.start : run.end], run.token_id) for run in splitter.split(text, trusted)]


def test_the_longest_of_several_tokens_is_taken() -> None:
    splitter = SpecialSplitter({"<a": 1, "<a>": 2, "<a><b>": 3})
    assert runs(splitter, "x<a><b>y<a>z<a") == [
        ("x", None),
        ("<a><b>", 3),
        ("y", None),
        ("<a>", 2),
        ("z", None),
        ("<a", 1),
    ]


def test_a_token_with_one_untrusted_character_is_text() -> None:
    splitter = SpecialSplitter({"<a>": 1})
    assert runs(splitter, "<a><a>", "111101") == [("<a>", 1), ("<a>", None)]


def test_a_user_defined_token_is_found_inside_a_refused_control_token() -> None:
    splitter = SpecialSplitter({"<a>": 1}, always={"<a": 2, ">": 3})
    assert runs(splitter, "<a>", "000") == [("<a", 2), (">", 3)]
    assert runs(splitter, "<a>") == [("<a>", 1)]


def test_white_space_beside_a_token_goes_where_the_token_asks_for_it() -> None:
    splitter = SpecialSplitter({"<a>": 1, "<b>": 2}, strips_before=["<a>"], strips_after=["<b>"])
    assert runs(splitter, "x \n<a> y <b> \n z") == [
        ("x", None),
        ("<a>", 1),
        (" y ", None),
        ("<b>", 2),
        ("z", None),
    ]


def test_no_tokens_leave_one_run_and_no_text_leaves_none() -> None:
    assert SpecialSplitter({}).split("abc", b"\1\1\1") == [Run(0, 3, None)]
    assert SpecialSplitter({"a": 1}).split("", b"") == []

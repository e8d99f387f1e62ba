"""Stop strings: one definition on the whole text, whatever the pieces; nothing of a stop shown, nothing else held.

FAULTS: S11 to S17 and S19 (matches over tokens, flushes, partial matches, empty stops, hidden tokens).
"""

import random
from collections.abc import Sequence

import pytest
from support.gguf_models import END, START, TURN, llama_metadata

from haaw.errors import BadInputError
from haaw.generation.finish import Finish
from haaw.generation.settings import make_settings
from haaw.generation.stop_strings import StopStrings
from haaw.generation.text_output import TextOutput
from haaw.tokenizers import tokenizer_from_gguf

CASES = pytest.mark.parametrize("cases", [1_000, pytest.param(20_000, marks=pytest.mark.long)])


def by_definition(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The first position where any stop has just ended, and of those that end there the longest, cut away."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            longest = max(ended, key=len)
            return text[: end - len(longest)], longest
    return text, None


def could_still_match(text: str, stops: Sequence[str]) -> str:
    """The longest end of a text that is a proper beginning of a stop."""
    beginnings = {stop[:n] for stop in stops for n in range(1, len(stop))}
    return max((text[i:] for i in range(len(text) + 1) if text[i:] in beginnings), key=len, default="")


def pieces(text: str, random_: random.Random) -> list[str]:
    """A text cut anywhere, empty pieces among them."""
    cuts = sorted(random_.choices(range(len(text) + 1), k=random_.randint(0, 8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@CASES
def test_any_text_any_cuts_any_stops_follow_the_definition(cases: int, seed: int) -> None:
    random_ = random.Random(seed)
    found = 0
    for _ in range(cases):
        alphabet = random_.choice(["ab", "abc", "<E>é中😀"])
        text = "".join(random_.choices(alphabet, k=random_.randint(0, 24)))
        stops = [
            "".join(random_.choices(alphabet, k=random_.randint(1, 6))) for _ in range(random_.randint(1, 4))
        ]
        expected, stop = by_definition(text, stops)
        found += stop is not None
        for cut in (pieces(text, random_), pieces(text, random_), list(text)):
            filter_, shown, so_far = StopStrings(stops), "", ""
            for piece in cut:
                shown += filter_.push(piece)
                so_far += piece
                if filter_.found is None:
                    assert filter_.held == could_still_match(so_far, stops)
                    assert shown + filter_.held == so_far
                assert expected.startswith(shown)  # nothing that would have to be taken back
            shown += filter_.flush()
            assert (shown, filter_.found) == (expected, stop)
    assert cases / 10 < found < cases * 9 / 10


def through(stops: Sequence[str], tokens: Sequence[str]) -> tuple[list[str], str, str | None]:
    filter_ = StopStrings(stops)
    shown = [filter_.push(token) for token in tokens]
    return shown, filter_.flush(), filter_.found


def test_nothing_of_a_stop_is_sent_before_the_match_is_decided() -> None:
    """S11: pieces that could begin a stop were sent."""
    assert through(["DEFG"], ["ABC", "DE", "F", "G"]) == (["ABC", "", "", ""], "", "DEFG")


def test_a_stop_is_found_over_a_token_boundary_and_inside_a_token() -> None:
    """S12: it was never seen, or text behind it leaked."""
    assert through(["b c"], [" a b", " c d"]) == ([" a ", ""], "", "b c")


def test_text_before_a_stop_in_the_same_token_is_shown() -> None:
    """S13: the last characters before the stop were missing from the stream."""
    assert through(["\n"], ["Why", "?\n"]) == (["Why", "?"], "", "\n")


def test_a_beginning_that_is_not_completed_is_shown_at_the_end() -> None:
    """S14: the answer kept the beginning of a stop, or lost what was none."""
    assert through(["<END>"], ["a<", "END", ">", "b"]) == (["a", "", "", ""], "", "<END>")
    assert through(["<END>"], ["a<", "EN"]) == (["a", ""], "<EN", None)


def test_nothing_is_held_when_no_stop_can_begin() -> None:
    """S16: text was held for the length of the longest stop."""
    filter_ = StopStrings(["Z" * 40])
    for token in ("Once", " upon", " a time"):
        assert filter_.push(token) == token
        assert filter_.held == ""


def test_without_stops_everything_passes() -> None:
    assert through([], ["a", "", "b"]) == (["a", "", "b"], "", None)


def test_of_stops_that_end_together_the_longer_one_counts() -> None:
    assert through(["b", "ab"], ["x", "a", "b"]) == (["x", "", ""], "", "ab")
    assert through(["abc", "b"], ["abc"]) == (["a"], "", "b")


# --- through a tokenizer, as a request does it

TOKENIZER = tokenizer_from_gguf(llama_metadata())
EOS = TOKENIZER.special_tokens()[END]


def output(ids: Sequence[int], **settings) -> tuple[list[str], TextOutput]:
    """Pushes ids until something ends the answer, then closes it."""
    side = TextOutput(TOKENIZER, make_settings(**settings))
    shown = []
    for token_id in ids:
        shown.append(side.push(token_id))
        if side.finish is not None:
            break
    shown.append(side.close())
    assert "".join(shown) == side.text
    assert side.close() == ""
    return shown, side


@CASES
def test_bytes_in_any_order_follow_the_definition(cases: int, seed: int) -> None:
    """Tokens of one byte cut every character of more; stops contain such characters, and U+FFFD itself."""
    random_ = random.Random(seed)
    parts = [*map(bytes, ([195], [169], [228, 184], [173], [240, 159])), "é".encode(), "中".encode(), b"a"]
    for _ in range(cases):
        data = b"".join(random_.choices(parts, k=random_.randint(0, 10)))
        stops = ["".join(random_.choices("aé中\ufffd", k=random_.randint(1, 3))) for _ in range(2)]
        expected, stop = by_definition(data.decode("utf-8", "replace"), stops)
        _, side = output(list(data), stop=stops)
        assert side.text == expected
        if stop is not None:
            assert side.finish == Finish("stop_string", {"stop_string": stop})
        else:
            assert side.finish is None


@pytest.mark.parametrize("stops", [[START], [START, "x"], ["x", START]])
def test_a_stop_that_is_a_hidden_token_is_found_by_its_id(stops: list[str]) -> None:
    """S19: such a stop never matched, since text hides the token."""
    token_id = TOKENIZER.special_tokens()[START]
    shown, side = output([97, token_id, 98], stop=stops)
    assert "".join(shown) == "a"
    assert side.finish == Finish("stop_string", {"stop_string": START, "token_id": token_id})
    assert side.finish.complete


def test_a_stop_that_is_a_hidden_token_is_also_found_when_it_is_spelled_out() -> None:
    shown, side = output([97, *START.encode(), 98], stop=["x"])
    assert "".join(shown) == "a" + START + "b"
    shown, side = output([97, *START.encode(), 98], stop=[START])
    assert "".join(shown) == "a"
    assert side.finish == Finish("stop_string", {"stop_string": START})


@pytest.mark.parametrize("stop", [TURN + "\n", "a" + TURN, START + TURN])
def test_a_stop_that_contains_a_hidden_token_is_refused_with_what_to_do(stop: str) -> None:
    with pytest.raises(BadInputError, match=r"control token.*stop_ids"):
        TextOutput(TOKENIZER, make_settings(stop=stop))


@pytest.mark.parametrize("stop", ["", [""], ["", "X"]])
def test_an_empty_stop_is_refused_by_name(stop) -> None:
    """S15: it ended every answer at once."""
    with pytest.raises(BadInputError, match=r"stop has ''; it must be a text of 1 to"):
        make_settings(stop=stop)


def test_an_id_that_ends_the_answer_has_no_text() -> None:
    shown, side = output([97, 98, 99], stop_ids=[98])
    assert "".join(shown) == "a"
    assert side.finish == Finish("stop_token", {"token_id": 98})
    shown, side = output([97, EOS, 99])
    assert "".join(shown) == "a"
    assert side.finish == Finish("eos", {"token_id": EOS})


def test_an_end_token_is_eos_even_if_it_was_asked_for_as_a_stop() -> None:
    assert output([EOS], stop_ids=[EOS])[1].finish == Finish("eos", {"token_id": EOS})
    assert output([EOS], stop=[END])[1].finish == Finish("eos", {"token_id": EOS})


@pytest.mark.parametrize("end", [EOS, None])
def test_held_text_and_half_characters_come_out_at_the_end_and_go_through_the_same_filter(end) -> None:
    """S17: the last piece bypassed what every other piece went through."""
    ids = [] if end is None else [end]
    assert "".join(output([*b"a<EN", *ids], stop=["<END>"])[0]) == "a<EN"
    half = "中".encode()[:2]
    assert "".join(output([*b"a<EN", *half, *ids], stop=["<END>"])[0]) == "a<EN\ufffd"
    assert "".join(output([*b"a<", *half, *ids], stop=["<\ufffd"])[0]) == "a"


CALL = ("<call>", "</call>")


@pytest.mark.parametrize(
    ("text", "stops", "shown", "call"),
    [
        ("ok <call>f(1)</call> more", [], "ok <call>f(1)</call>", "f(1)"),
        ("</call><call>g</call>", [], "</call><call>g</call>", "g"),
        ("<call></call>", [], "<call></call>", ""),
        ("<call>f</call>x", ["x!"], "<call>f</call>", "f"),
        ("<call>f</call>", ["</call>!"], "<call>f</call>", "f"),
        ("a <call>f(1)", [], "a <call>f(1)", None),
        ("a <call>f; stop</call>", ["; stop"], "a <call>f", None),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_closed_tool_call_ends_the_answer_behind_it(text, stops, shown, call, size: int) -> None:
    """A token that closes the call and goes on: what follows the call is not part of the answer."""
    tokens = [text[i : i + size] for i in range(0, len(text), size)]
    side = TextOutput(Spelled(tokens), make_settings(tool_call_markers=CALL, stop=stops))
    out = ""
    for number in range(len(tokens)):
        out += side.push(number)
        if side.finish is not None:
            break
    out += side.close()
    assert out == side.text == shown
    if call is not None:
        assert side.finish == Finish("tool_call", {"call": call})


class Spelled:
    """A text side whose ids are numbers of given pieces."""

    eos_ids: frozenset[int] = frozenset()

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = tokens

    def special_tokens(self) -> dict[str, int]:
        return {}

    def token_bytes(self, token_id: int) -> bytes:
        return self.tokens[token_id].encode()

    def detokenizer(self, *, begins="text"):
        return self

    def push(self, token_id: int) -> str:
        return self.tokens[token_id]

    def flush(self) -> str:
        return ""

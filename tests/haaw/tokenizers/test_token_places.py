"""Which characters became which token, as a trace tells it, for every kind of tokenizer (FAULTS: S1 to S3)."""

import random

from haaw.generation.preparation import places_by_bytes, token_places
from haaw.tokenizers import JsonTokenizer, Tokenizer

WORDS = ["hello", "日本", "é", "😀", "  ", "It is.", "\n", "🏳️\u200d🌈", "▁", "ﬁx", "e\u0301", "<tag>", "½"]


def test_places_are_those_of_the_bytes_and_agree_with_the_tokenizer(tokenizer: Tokenizer, seed: int) -> None:
    """Where a token's bytes lie in the text is decided by bytes alone; its kind's own spans are the second opinion."""
    random_ = random.Random(seed)
    exact = 0
    for _ in range(200):
        text = random_.choice(["", " "]).join(random_.choices(WORDS, k=random_.randint(1, 8)))
        ids = tokenizer.encode_prompt(text)
        spans = tokenizer.encode_spans(text)
        pieces = list(map(tokenizer.token_bytes, ids))
        places, found_by = token_places(text, ids, pieces, tokenizer, ())
        assert found_by in ("bytes", "tokenizer")
        begin = len(ids) - len(spans)
        assert places[:begin] == [(0, 0)] * begin
        if found_by == "tokenizer":
            assert places_by_bytes(text, ids, pieces, tokenizer.bos_id) is None
            assert places[begin:] == [(span.start, span.end) for span in spans]
            continue
        exact += 1
        check_by_bytes(text, pieces[begin:], places[begin:])
        for (start, end), span in zip(places[begin:], spans, strict=True):
            if isinstance(tokenizer, JsonTokenizer):
                # The library gives an added space the first character, and cut spaces to no token at all.
                assert (start, end) == (0, 0) or (start <= span.start and span.end <= end), (text, span)
            else:
                assert (start, end) == (span.start, span.end), (text, span)
    assert exact or tokenizer.decode(tokenizer.encode("日本")) != "日本"


def check_by_bytes(text: str, pieces: list[bytes], places: list[tuple[int | None, int | None]]) -> None:
    """Each token's bytes lie within the bytes of its characters, and reach into the first and the last of them."""
    position = len(text.encode()) - sum(map(len, pieces))  # minus one: a space that the tokenizer added
    for piece, (start, end) in zip(pieces, places, strict=True):
        low, high = max(position, 0), position + len(piece)
        assert start is not None
        assert end is not None
        if high > low:
            assert len(text[:start].encode()) <= low < len(text[: start + 1].encode())
            assert len(text[: end - 1].encode()) < high <= len(text[:end].encode())
        position = high

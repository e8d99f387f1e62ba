"""What every kind of tokenizer promises, checked on a small one of each."""

import random

import pytest

from haaw.errors import BadInputError
from haaw.tokenizers import Detokenizer, TextPart, Tokenizer

EXACT = ("byte-level gguf", "sentencepiece bpe model", "sentencepiece gguf", "byte-level json")


def random_ids(rng: random.Random, tokenizer: Tokenizer) -> list[int]:
    """Ids of a real text, cut anywhere and sprinkled with any ids; or any ids at all."""
    length = rng.randrange(1, 24)
    if rng.random() < 0.5:
        return [rng.randrange(tokenizer.vocabulary_size) for _ in range(length)]
    words = ["hello", "日本", "é", "😀", "  ", "It is.", "\n", "🏳️\u200d🌈", "▁", "<tag>"]
    ids = tokenizer.encode(" ".join(rng.choices(words, k=length)))
    ids = ids[rng.randrange(len(ids) or 1) :]
    return [i if rng.random() < 0.9 else rng.randrange(tokenizer.vocabulary_size) for i in ids]


def streamed(detokenizer: Detokenizer, ids: list[int]) -> str:
    return "".join([*(detokenizer.push(i) for i in ids), detokenizer.flush()])


def check_streams(tokenizer: Tokenizer, rng: random.Random, count: int) -> None:
    for _ in range(count):
        ids = random_ids(rng, tokenizer)
        special = rng.choice(["hide", "show"])
        begins = rng.choice(["text", "middle"])
        whole = tokenizer.decode(ids, special=special, begins=begins)
        assert streamed(tokenizer.detokenizer(special=special, begins=begins), ids) == whole, ids


def test_joined_deltas_equal_the_text_decoded_in_one_go(
    tokenizer: Tokenizer, fresh_random: random.Random
) -> None:
    check_streams(tokenizer, fresh_random, 1_000)


@pytest.mark.long
def test_joined_deltas_equal_the_text_decoded_in_one_go_many_times(
    tokenizer: Tokenizer, fresh_random: random.Random
) -> None:
    check_streams(tokenizer, fresh_random, 20_000)


def test_a_long_answer_holds_back_a_few_bytes_only(tokenizer: Tokenizer, fresh_random: random.Random) -> None:
    detokenizer = tokenizer.detokenizer()
    longest = max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocabulary_size))
    for _ in range(5_000):
        detokenizer.push(fresh_random.randrange(tokenizer.vocabulary_size))
        assert len(detokenizer.held_bytes) <= longest + 3


def test_held_bytes_are_what_flush_still_turns_into_text(
    tokenizer: Tokenizer, fresh_random: random.Random
) -> None:
    for _ in range(300):
        ids = random_ids(fresh_random, tokenizer)
        detokenizer = tokenizer.detokenizer()
        sent = "".join(detokenizer.push(i) for i in ids)
        if not detokenizer.held_bytes:
            assert detokenizer.flush() == ""
            assert sent == tokenizer.decode(ids)


def test_a_flushed_detokenizer_takes_no_more_ids(tokenizer: Tokenizer) -> None:
    detokenizer = tokenizer.detokenizer()
    detokenizer.push(1)
    detokenizer.flush()
    assert detokenizer.flush() == ""
    with pytest.raises(BadInputError, match="flushed"):
        detokenizer.push(1)


def test_text_survives_encoding_and_decoding(
    request: pytest.FixtureRequest, tokenizer: Tokenizer, texts: list[str]
) -> None:
    if not any(kind in request.node.name for kind in EXACT):
        pytest.skip("this kind normalises its text")
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_spans_are_those_of_the_same_ids_and_cover_the_text_in_order(
    request: pytest.FixtureRequest, tokenizer: Tokenizer, texts: list[str]
) -> None:
    for text in texts:
        spans = tokenizer.encode_spans(text)
        assert [span.id for span in spans] == tokenizer.encode(text)
        assert all(0 <= span.start <= span.end <= len(text) for span in spans)
        assert [span.start for span in spans] == sorted(span.start for span in spans)
        if any(kind in request.node.name for kind in EXACT):
            covered = {i for span in spans for i in range(span.start, span.end)}
            assert covered == set(range(len(text))), (text, spans)


def test_a_control_token_typed_as_text_is_ordinary_text(tokenizer: Tokenizer) -> None:
    control = set(tokenizer.special_tokens().values())
    for token in tokenizer.special_tokens():
        if token not in ("<unk>", "[UNK]"):
            assert not control - {0} & set(tokenizer.encode(f"a {token} b")), token


def test_a_control_token_is_parsed_where_it_is_asked_for(tokenizer: Tokenizer) -> None:
    for token, token_id in tokenizer.special_tokens().items():
        assert token_id in tokenizer.encode(f"a {token} b", special="parse")


def test_a_control_token_that_spans_trusted_and_untrusted_text_is_not_parsed(tokenizer: Tokenizer) -> None:
    for token, token_id in tokenizer.special_tokens().items():
        for cut in range(1, len(token)):
            parts = [TextPart("a " + token[:cut], "parse"), TextPart(token[cut:] + " b", "text")]
            assert token_id not in tokenizer.encode_parts(parts) or token_id == 0


def test_parts_without_control_tokens_encode_as_the_joined_text(
    tokenizer: Tokenizer, fresh_random: random.Random
) -> None:
    text = "hello It is. 日本語 don't stop  now"
    whole = tokenizer.encode(text)
    for _ in range(20):
        cut = fresh_random.randrange(len(text) + 1)
        parts = [TextPart(text[:cut], "parse"), TextPart(text[cut:], "text")]
        assert tokenizer.encode_parts(parts) == whole


def test_an_empty_text_has_no_ids_and_an_empty_prompt_at_most_bos(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == []
    assert tokenizer.encode_spans("") == []
    assert tokenizer.encode_prompt("") == ([tokenizer.bos_id] if tokenizer.add_bos else [])
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("wrong", [-1, 10**6, 2**64, "3", 1.0, None])
def test_an_id_outside_the_vocabulary_is_refused_by_name(tokenizer: Tokenizer, wrong: object) -> None:
    for act in (
        lambda: tokenizer.decode([wrong]),  # type: ignore[list-item]
        lambda: tokenizer.token_bytes(wrong),  # type: ignore[arg-type]
        lambda: tokenizer.detokenizer().push(wrong),  # type: ignore[arg-type]
    ):
        with pytest.raises(BadInputError) as caught:
            act()
        assert str(wrong) in str(caught.value)
        if isinstance(wrong, int):
            assert str(tokenizer.vocabulary_size) in str(caught.value)


def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(BadInputError, match="surrogate"):
        tokenizer.encode("a\ud800b")


def test_the_bytes_of_the_tokens_joined_are_the_text_from_the_middle(
    request: pytest.FixtureRequest, tokenizer: Tokenizer, texts: list[str]
) -> None:
    if not any(kind in request.node.name for kind in EXACT):
        pytest.skip("this kind's decoder looks at neighbouring tokens")
    for text in texts:
        ids = tokenizer.encode(text)
        joined = b"".join(tokenizer.token_bytes(i) for i in ids)
        assert joined.decode("utf-8") == tokenizer.decode(ids, begins="middle")

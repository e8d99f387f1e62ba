"""The reported faults of incremental detokenising, each with its smallest case."""

from collections.abc import Callable

import pytest

from haaw.tokenizers import SentencePieceTokenizer, Tokenizer

Build = Callable[[str], Tokenizer]


def deltas(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = tokenizer.detokenizer()
    out = [detokenizer.push(i) for i in ids]
    last = detokenizer.flush()
    return [*out, last] if last else out


@pytest.fixture
def spm(sentencepiece_gguf: Callable[[bytes], object]) -> Callable[..., SentencePieceTokenizer]:
    """A SentencePiece vocabulary: <unk>, <s>, </s>, the 256 bytes and the given pieces (ids from 259)."""

    def make(*pieces: str) -> SentencePieceTokenizer:
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
        return SentencePieceTokenizer.from_gguf(
            {
                "tokenizer.ggml.tokens": tokens,
                "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(pieces))],
                "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
                "tokenizer.ggml.bos_token_id": 1,
                "tokenizer.ggml.eos_token_id": 2,
                "tokenizer.ggml.unknown_token_id": 0,
            }
        )

    return make


def test_a_character_of_three_byte_tokens_comes_out_whole_and_once(build: Build) -> None:
    """S01: non-Latin text streamed byte by byte gave empty and broken pieces. U+4E2D is E4 B8 AD."""
    tokenizer = build("byte-level gguf")
    assert deltas(tokenizer, [0xE4, 0xB8, 0xAD, ord("a")]) == ["", "", "中", "a"]
    detokenizer = tokenizer.detokenizer()
    detokenizer.push(0xE4)
    detokenizer.push(0xB8)
    assert detokenizer.held_bytes == b"\xe4\xb8"


def test_a_character_split_over_two_tokens_is_whole_in_the_text_decoded_at_once(build: Build) -> None:
    """S02: the buffered answer was joined from tokens decoded alone."""
    assert build("byte-level gguf").decode(list("😀".encode())) == "😀"


def test_combining_marks_and_joiners_come_out_once(build: Build) -> None:
    """S03: grapheme-wise differences repeated the character before a combining mark."""
    tokenizer = build("byte-level gguf")
    for text in ("e\u0301x", "\U0001f3f3\ufe0f\u200d\U0001f308"):
        out = deltas(tokenizer, list(text.encode()))
        assert [delta for delta in out if delta] == list(text)


def test_words_keep_the_spaces_between_them(spm: Callable[..., SentencePieceTokenizer]) -> None:
    """S04: each token decoded alone lost its leading space."""
    assert deltas(spm("▁It", "▁is", ".", "▁Then"), [259, 260, 261, 262]) == ["It", " is", ".", " Then"]


@pytest.mark.parametrize("every", range(1, 8))
def test_how_many_ids_arrive_at_once_does_not_change_the_text(
    spm: Callable[..., SentencePieceTokenizer], every: int
) -> None:
    """S05: with several tokens per step a space between two pieces disappeared."""
    ids = [259, 260, 261, 262, 3 + 0xE4, 3 + 0xB8, 3 + 0xAD, 260]
    detokenizer = spm("▁It", "▁is", ".", "▁Then").detokenizer()
    groups = [ids[i : i + every] for i in range(0, len(ids), every)]
    text = "".join("".join(detokenizer.push(i) for i in group) for group in groups) + detokenizer.flush()
    assert text == "It is. Then中 is"


def test_exactly_one_prefix_space_is_taken_from_the_beginning(
    spm: Callable[..., SentencePieceTokenizer], build: Build
) -> None:
    """S06: text that begins with a space lost it, or lost two."""
    assert "".join(deltas(spm("▁", "▁lead", "▁x"), [259, 260, 261])) == " lead x"
    byte_level = build("byte-level gguf")
    assert "".join(deltas(byte_level, byte_level.encode(" lead"))) == " lead"


def test_a_continuation_keeps_its_first_space(spm: Callable[..., SentencePieceTokenizer]) -> None:
    """An answer that goes on after a prompt begins in the middle of a text."""
    tokenizer = spm("▁It", "▁is")
    assert tokenizer.decode([260], begins="middle") == " is"
    assert tokenizer.decode([260]) == "is"


def test_byte_tokens_are_bytes_and_the_same_letters_typed_are_letters(build: Build) -> None:
    """S07: newlines came out as the text of a byte token."""
    for kind in ("spm-like json", "sentencepiece gguf"):
        tokenizer = build(kind)
        newline = 3 + 10 if kind == "spm-like json" else tokenizer.encode("a\n")[-1]
        assert tokenizer.token_bytes(newline) == b"\n"
        assert tokenizer.decode([newline]) == "\n"
        typed = tokenizer.encode("<0x0A>")
        assert newline not in typed
        assert tokenizer.decode(typed) == "<0x0A>"


def test_no_clean_up_of_spaces_happens_in_either_form(build: Build) -> None:
    """S09: clean-up made the text shorter after it had been sent; here there is none."""
    tokenizer = build("byte-level gguf")
    ids = tokenizer.encode("do n't . , ?")
    assert tokenizer.decode(ids) == "do n't . , ?"
    assert "".join(deltas(tokenizer, ids)) == "do n't . , ?"


def test_token_bytes_are_the_vocabulary_s_own(build: Build) -> None:
    """S10: the bytes of half a character were those of the replacement character."""
    tokenizer = build("byte-level gguf")
    ids = list("😀".encode())
    assert [tokenizer.token_bytes(i) for i in ids] == [b"\xf0", b"\x9f", b"\x98", b"\x80"]
    assert b"".join(tokenizer.token_bytes(i) for i in ids).decode() == "😀"
    assert tokenizer.token_bytes(260) == b" hello"


def test_invalid_bytes_become_replacement_characters_by_python_s_rule(build: Build) -> None:
    """One U+FFFD for each maximal invalid part, at the moment when it is certain."""
    assert deltas(build("byte-level gguf"), [0xE4, 0xB8, ord("a"), 0xFF, 0xF0, 0x9F]) == [
        "",
        "",
        "\ufffda",
        "\ufffd",
        "",
        "",
        "\ufffd",
    ]


def test_hidden_control_tokens_do_not_break_a_character(build: Build) -> None:
    tokenizer = build("byte-level gguf")
    assert deltas(tokenizer, [0xE4, 261, 0xB8, 262, 0xAD]) == ["", "", "", "", "中"]
    assert tokenizer.decode([0x41, 262], special="show") == "A<|im_end|>"


def test_the_ids_count_and_not_the_text_encoded_again(build: Build) -> None:
    """S21: 'h' and 'e' as two ids are one token when their text is encoded again."""
    tokenizer = build("byte-level gguf")
    ids = [ord("h"), ord("e")]
    assert tokenizer.encode(tokenizer.decode(ids)) == [256]

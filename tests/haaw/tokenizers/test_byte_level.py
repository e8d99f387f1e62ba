"""Byte-level BPE from GGUF metadata, on a vocabulary of 264 tokens."""

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from haaw.errors import BadInputError
from haaw.tokenizers import ByteLevelTokenizer
from haaw.tokenizers.pre_tokenizers import PRE_TOKENIZERS

Metadata = Callable[..., dict[str, Any]]


def test_merges_apply_in_their_order(byte_level_gguf: Metadata) -> None:
    tokenizer = ByteLevelTokenizer.from_gguf(byte_level_gguf())
    # "hello": h+e (rank 0), l+l (1), he+ll (2), hell+o (3). " hello" goes one further. "held" stops at he.
    assert tokenizer.encode("hello") == [259]
    assert tokenizer.encode("hello hello") == [259, 260]
    assert tokenizer.encode("held") == [256, ord("l"), ord("d")]


def test_decoding_agrees_with_the_library_s_decoder(
    byte_level_gguf: Metadata, fresh_random: random.Random
) -> None:
    from tokenizers import decoders

    metadata = byte_level_gguf()
    tokenizer = ByteLevelTokenizer.from_gguf(metadata)
    library = decoders.ByteLevel()
    for _ in range(1_000):
        ids = [fresh_random.randrange(261) for _ in range(fresh_random.randrange(1, 20))]
        assert tokenizer.decode(ids) == library.decode([metadata["tokenizer.ggml.tokens"][i] for i in ids])


def test_a_user_defined_token_is_read_from_any_text_unless_it_is_named_as_a_marker(
    byte_level_gguf: Metadata,
) -> None:
    from haaw.tokenizers import TextPart

    tokenizer = ByteLevelTokenizer.from_gguf(byte_level_gguf())
    assert tokenizer.encode("<tag>") == [263]
    assert 263 not in tokenizer.encode_parts([TextPart("<tag>", "text")], markers=frozenset({"<tag>"}))
    assert tokenizer.encode_parts([TextPart("<tag>", "parse")], markers=frozenset({"<tag>"})) == [263]


def test_spans_share_a_character_that_is_split_over_tokens(byte_level_gguf: Metadata) -> None:
    spans = ByteLevelTokenizer.from_gguf(byte_level_gguf()).encode_spans("é<tag>x")
    assert [(s.id, s.start, s.end) for s in spans] == [(0xC3, 0, 1), (0xA9, 0, 1), (263, 1, 6), (120, 6, 7)]


def test_a_prefix_space_is_added_where_the_file_asks_for_it(byte_level_gguf: Metadata) -> None:
    metadata = byte_level_gguf(**{"tokenizer.ggml.add_space_prefix": True})
    tokenizer = ByteLevelTokenizer.from_gguf(metadata)
    assert tokenizer.encode("hello") == [260]
    assert [(s.start, s.end) for s in tokenizer.encode_spans("hello")] == [(0, 5)]


def test_bos_goes_before_a_prompt_once(byte_level_gguf: Metadata) -> None:
    tokenizer = ByteLevelTokenizer.from_gguf(byte_level_gguf(**{"tokenizer.ggml.add_bos_token": True}))
    assert tokenizer.encode_prompt("hello") == [261, 259]
    assert tokenizer.encode_prompt("<|im_start|>hello", special="parse") == [261, 259]
    assert tokenizer.encode_prompt("") == [261]


def test_a_prompt_without_ids_stays_without_where_there_is_no_bos(byte_level_gguf: Metadata) -> None:
    """S23, S24: what to do with no ids is the engine's decision; the tokenizer invents none."""
    assert ByteLevelTokenizer.from_gguf(byte_level_gguf()).encode_prompt("") == []


def test_every_id_that_ends_an_answer_is_known(byte_level_gguf: Metadata) -> None:
    """S18: end, end of turn, end of message, and the names that models use for them."""
    tokens = [*byte_level_gguf()["tokenizer.ggml.tokens"], "<|eot_id|>", "<stop>"]
    metadata = byte_level_gguf(
        **{
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * 261 + [3, 3, 4, 3, 3],
            "tokenizer.ggml.eot_token_id": 265,
            "tokenizer.ggml.eos_token_id": 1,
        }
    )
    # 262 <|im_end|> and 264 <|eot_id|> by name, 1 and 265 by the metadata
    assert ByteLevelTokenizer.from_gguf(metadata).eos_ids == {1, 262, 264, 265}


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_known_pre_tokenizer_keeps_all_text(
    byte_level_gguf: Metadata, name: str, texts: list[str]
) -> None:
    tokenizer = ByteLevelTokenizer.from_gguf(byte_level_gguf(**{"tokenizer.ggml.pre": name}))
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text), special="show") == text


def test_an_unknown_pre_tokenizer_is_refused_by_name_with_the_known_ones(byte_level_gguf: Metadata) -> None:
    with pytest.raises(BadInputError, match=r"'martian'.*gpt-2, .*llama-bpe"):
        ByteLevelTokenizer.from_gguf(byte_level_gguf(**{"tokenizer.ggml.pre": "martian"}))


def test_a_file_without_a_pre_tokenizer_gets_the_default(byte_level_gguf: Metadata) -> None:
    metadata = byte_level_gguf()
    del metadata["tokenizer.ggml.pre"]
    # The default cuts digits into threes; "gpt-2" would leave "12345" whole (all bytes here, so ids agree).
    assert ByteLevelTokenizer.from_gguf(metadata).encode("hello") == [259]


def test_text_that_needs_a_byte_without_a_token_is_refused_and_not_lost() -> None:
    metadata = {
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
    }
    tokenizer = ByteLevelTokenizer.from_gguf(metadata)
    assert tokenizer.encode("abba") == [2, 1, 0]
    with pytest.raises(BadInputError, match="0x63"):
        tokenizer.encode("abc")


def test_building_a_vocabulary_of_fifty_thousand_tokens_is_fast(byte_level_gguf: Metadata) -> None:
    """The first word must come within seconds of the start; 0.3 s of processor time is the budget."""
    base = byte_level_gguf()["tokenizer.ggml.tokens"]
    words, merges = [], []
    for left in base[:224]:
        for right in base[:224]:
            words.append(left + right)
            merges.append(f"{left} {right}")
    merges = [m for m, w in zip(merges, words, strict=True) if w not in base]
    words = [w for w in words if w not in base]
    tokens = [*base, *words]
    metadata = byte_level_gguf(
        **{
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.token_type": [1] * 261 + [3, 3, 4] + [1] * len(words),
        }
    )
    assert len(tokens) > 50_000
    start_s = time.process_time()
    ByteLevelTokenizer.from_gguf(metadata)
    assert time.process_time() - start_s < 1.0  # three times the budget, for slow machines

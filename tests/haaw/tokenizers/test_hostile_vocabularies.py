"""Vocabularies from strangers: one BadInputError that names the key, never another kind of error."""

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from haaw.errors import BadInputError
from haaw.tokenizers import chat_template_from_gguf, tokenizer_from_gguf

Metadata = Callable[..., dict[str, Any]]

G = "tokenizer.ggml."

BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no tokens": ({G + "tokens": None}, "tokens"),
    "tokens are no array": ({G + "tokens": "abc"}, "must be an array"),
    "tokens are a number": ({G + "tokens": 7}, "must be an array"),
    "no token at all": ({G + "tokens": []}, "0 tokens"),
    "a token is a number": ({G + "tokens": ["a", 3]}, r"tokens\[1\] must be a string"),
    "a token is bytes": ({G + "tokens": ["a", b"b"]}, r"tokens\[1\] must be a string"),
    "two tokens alike": ({G + "tokens": ["a", "b", "a"], G + "token_type": [1] * 3}, "'a' twice"),
    "a token of 10 MB": ({G + "tokens": ["a", "x" * 10_000_000]}, "10000000 characters"),
    "too few types": ({G + "token_type": [1, 1]}, "2 entries"),
    "a type is text": ({G + "token_type": ["1"] * 264}, "whole numbers"),
    "a type is unknown": ({G + "token_type": [99] * 264}, "is 99"),
    "merges are no array": ({G + "merges": 5}, "must be an array"),
    "merges are missing": ({G + "merges": None}, "merges"),
    "a merge is a number": ({G + "merges": [1]}, r"merges\[0\] must be a string"),
    "a merge is one word": ({G + "merges": ["abc"]}, r"merges\[0\]"),
    "a merge is three words": ({G + "merges": ["a b c"]}, r"merges\[0\]"),
    "a merge of unknown tokens": ({G + "merges": ["q zebra"]}, "merges"),
    "a merge makes an unknown token": ({G + "merges": ["q z"]}, "merges"),
    "a bos beyond the vocabulary": ({G + "bos_token_id": 264}, "264"),
    "an eos below zero": ({G + "eos_token_id": -1}, "-1"),
    "an eos that is text": ({G + "eos_token_id": "2"}, "'2'"),
    "an eos that is half": ({G + "eos_token_id": 1.5}, "1.5"),
    "add_bos that is text": ({G + "add_bos_token": "yes"}, "add_bos_token"),
    "add_bos without a bos": ({G + "add_bos_token": True, G + "bos_token_id": None}, "names none"),
    "a pre-tokenizer that is a number": ({G + "pre": 3}, "pre must be a string"),
    "an unknown kind": ({G + "model": "t5"}, "'t5'"),
    "no kind": ({G + "model": None}, "no tokenizer"),
    "a kind that is a list": ({G + "model": ["gpt2"]}, "must be a string"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_byte_level_vocabulary_is_refused(byte_level_gguf: Metadata, name: str) -> None:
    changes, message = BROKEN[name]
    start_s = time.process_time()
    with pytest.raises(BadInputError, match=message) as caught:
        tokenizer_from_gguf(byte_level_gguf(**changes))
    assert len(str(caught.value)) < 700
    assert time.process_time() - start_s < 2


SPM_BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no scores": ({G + "scores": None}, "scores"),
    "too few scores": ({G + "scores": [0.0]}, "1 entries"),
    "a score that is text": ({G + "scores": "many"}, "must be an array"),
    "an unknown id out of range": ({G + "unknown_token_id": 10**9}, "1000000000"),
    "a byte that is none": ({G + "token_type": 6}, "typed as a byte"),
    "nothing is unknown": ({G + "token_type": 1}, "no unknown token"),
    "remove_extra is a number": ({G + "remove_extra_whitespaces": 1}, "true or false"),
}


@pytest.mark.parametrize("name", SPM_BROKEN)
def test_a_broken_sentencepiece_vocabulary_is_refused(
    sentencepiece_model: Callable[..., bytes],
    sentencepiece_gguf: Callable[[bytes], dict[str, Any]],
    name: str,
) -> None:
    metadata = sentencepiece_gguf(sentencepiece_model())
    changes, message = SPM_BROKEN[name]
    if isinstance(changes.get(G + "token_type"), int):
        first = 2 if changes[G + "token_type"] == 6 else 1
        rest = [changes[G + "token_type"]] * (len(metadata[G + "tokens"]) - 1)
        changes = {G + "token_type": [first, *rest]}
    with pytest.raises(BadInputError, match=message):
        tokenizer_from_gguf({**metadata, **changes})


@pytest.mark.parametrize("score", [float("nan"), float("inf"), 1e300, None, "x"])
def test_a_score_that_is_no_finite_number_is_refused(
    sentencepiece_model: Callable[..., bytes],
    sentencepiece_gguf: Callable[[bytes], dict[str, Any]],
    score: Any,
) -> None:
    metadata = sentencepiece_gguf(sentencepiece_model())
    metadata[G + "scores"][300] = score
    with pytest.raises(BadInputError, match="scores"):
        tokenizer_from_gguf(metadata)


def test_numbers_from_numpy_arrays_are_read_as_numbers(byte_level_gguf: Metadata) -> None:
    metadata = byte_level_gguf()
    arrays = {
        G + "token_type": np.asarray(metadata[G + "token_type"], np.int32),
        G + "eos_token_id": np.uint32(262),
        G + "add_bos_token": np.bool_(True),
    }
    tokenizer = tokenizer_from_gguf({**metadata, **arrays})
    assert tokenizer.encode_prompt("hello") == [261, 259]
    assert tokenizer.eos_ids == {262}


def test_random_damage_to_metadata_ends_in_one_kind_of_error(
    byte_level_gguf: Metadata,
    sentencepiece_model: Callable[..., bytes],
    sentencepiece_gguf: Callable[[bytes], dict[str, Any]],
    fresh_random: random.Random,
) -> None:
    junk: list[Any] = [
        None,
        0,
        -1,
        2**70,
        1.5,
        float("nan"),
        True,
        "",
        "x",
        b"x",
        [],
        ["x"],
        [None],
        {},
        [[1]],
        "\ud800",
    ]
    model = sentencepiece_gguf(sentencepiece_model())
    refused = 0
    for _ in range(400):
        metadata = dict(byte_level_gguf() if fresh_random.random() < 0.7 else model)
        for _ in range(fresh_random.randrange(1, 3)):
            key = fresh_random.choice(
                [*metadata, G + "add_space_prefix", "tokenizer.chat_template", "general.name"]
            )
            value = metadata.get(key)
            if isinstance(value, list) and value and fresh_random.random() < 0.6:
                value = list(value)
                value[fresh_random.randrange(len(value))] = fresh_random.choice(junk)
                metadata[key] = value
            else:
                metadata[key] = fresh_random.choice(junk)
        try:
            tokenizer = tokenizer_from_gguf(metadata)
            chat_template_from_gguf(metadata, tokenizer)
            tokenizer.decode(tokenizer.encode("hello <|im_end|>"))
        except BadInputError:
            refused += 1
    assert 0 < refused < 400


def test_an_empty_token_keeps_its_id_and_stands_for_nothing(byte_level_gguf: Metadata) -> None:
    tokens = list(byte_level_gguf()[G + "tokens"])
    tokenizer = tokenizer_from_gguf(
        byte_level_gguf(**{G + "tokens": [*tokens, ""], G + "token_type": [1] * 261 + [3, 3, 4, 1]})
    )
    assert tokenizer.vocabulary_size == 265
    assert tokenizer.token_bytes(264) == b""

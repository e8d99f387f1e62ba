import itertools
import random

import pytest

from weights_tools.train.asking import TURN_TOKENS
from weights_tools.train.documents import documents
from weights_tools.train.tokenizer import (
    BEGIN_ID,
    END_ID,
    FIRST_BYTE_ID,
    encode_document,
    split_words,
    train_tokenizer,
)


def test_the_same_arguments_give_the_same_tokenizer_byte_for_byte():
    once, twice = (train_tokenizer(pieces=900, corpus_documents=300) for _ in range(2))
    assert once == twice


def test_every_name_noun_and_place_is_one_token(tokenizer):
    assert split_words(tokenizer) == []


def test_words_are_whole_after_a_turn_token_and_after_a_line_break(tokenizer):
    for before in (*TURN_TOKENS, "\n", "Question:", "."):
        assert len(tokenizer.encode(before + " Mia")) == len(tokenizer.encode(before)) + 1


def test_turn_tokens_are_single_ids_after_the_special_ones(tokenizer):
    assert [tokenizer.piece_to_id(token) for token in TURN_TOKENS] == [3, 4, 5]
    assert tokenizer.is_byte(FIRST_BYTE_ID)
    assert not tokenizer.is_byte(FIRST_BYTE_ID - 1)


@pytest.mark.parametrize("text", ["Füße", "日本語", "👩‍🚀 🎈", "\x00\t\r\n", "a  b   c", " ", "", "▁", "𝔘𝔫𝔦"])
def test_any_text_comes_back_from_its_ids(tokenizer, text):
    ids = tokenizer.encode(text)
    assert 0 not in ids
    # SentencePiece writes a space as U+2581, so that a literal U+2581 comes back as a space.
    assert tokenizer.decode(ids) == text.replace("▁", " ")


def test_pieces_of_a_document_encode_as_the_whole_text_does(tokenizer):
    rng = random.Random(1)
    for document in itertools.islice(documents(9), 300):
        if document.pieces:
            ids, weights = encode_document(document, tokenizer, rng)
            whole = tokenizer.encode("".join(text for text, _ in document.pieces))
            assert ids == [BEGIN_ID, *whole, END_ID]
            assert len(weights) == len(ids)


def test_a_random_list_is_repeated_once_and_only_the_copy_counts(tokenizer):
    document = next(one for one in documents(9) if one.random_tokens)
    ids, weights = encode_document(document, tokenizer, random.Random(1))
    count = document.random_tokens
    assert ids[1 : count + 1] == ids[count + 1 : 2 * count + 1]
    # The first token of the copy cannot be foreseen; the other count - 1 can.
    assert weights[: count + 2] == [0.0] * (count + 2)
    assert weights[count + 2 : 2 * count + 1] == [1.0] * (count - 1)

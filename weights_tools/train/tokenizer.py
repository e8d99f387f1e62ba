"""The tokenizer of the embedded model: SentencePiece (BPE with byte fallback), trained on generated documents.

Text has no dummy prefix: a word begins with a space wherever it stands, also after a turn token. Special ids:
0 unknown, 1 begin, 2 end of document, then the turn tokens.
"""

from __future__ import annotations

import io
import itertools
import random
import re
from functools import cache
from typing import Any

from weights_tools.train import words
from weights_tools.train.asking import TURN_TOKENS
from weights_tools.train.documents import STORY_MARK, TELLING_FACTOR, Document, documents

UNKNOWN_ID, BEGIN_ID, END_ID = 0, 1, 2
FIRST_BYTE_ID = 3 + len(TURN_TOKENS)
CORPUS_SEED = 1
AFTER_DIGIT = re.compile(r"(?<=[0-9])(?=[.?])")


def corpus_lines(count: int, seed: int = CORPUS_SEED) -> list[str]:
    """Give the lines that the tokenizer is trained on: the text pieces of so many documents, without line breaks."""
    lines: list[str] = []
    for document in itertools.islice(documents(seed), count):
        for text, _ in document.pieces:
            for token in TURN_TOKENS:
                text = text.replace(token, "\n")
            # The mark's words are learned from the stories, which would else all begin with a space.
            text = text.replace(f" {STORY_MARK}", "").removeprefix(f"{STORY_MARK} ")
            text = AFTER_DIGIT.sub("\n", text)  # else "7." and "7?" become pieces of their own
            lines += [line for line in text.split("\n") if line]
    # A prompt may begin with any name, without a space before it.
    return lines + [name for name in words.NAMES for _ in range(400)]


def train_tokenizer(*, pieces: int, corpus_documents: int = 12_000) -> bytes:
    """Train the tokenizer and give its `.model` bytes; the same arguments give the same bytes."""
    import sentencepiece as spm

    out = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus_lines(corpus_documents)),
        model_writer=out,
        model_type="bpe",
        vocab_size=pieces,
        byte_fallback=True,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        character_coverage=1.0,
        user_defined_symbols=list(TURN_TOKENS),
        unk_id=UNKNOWN_ID,
        bos_id=BEGIN_ID,
        eos_id=END_ID,
        pad_id=-1,
        num_threads=1,
        max_sentence_length=100_000,
        minloglevel=2,
    )
    return out.getvalue()


def load_tokenizer(model: bytes) -> Any:
    """Open a tokenizer from its `.model` bytes."""
    import sentencepiece as spm

    tokenizer = spm.SentencePieceProcessor()
    tokenizer.LoadFromSerializedProto(model)
    return tokenizer


def must_be_whole() -> list[str]:
    """List the words that have to be one token: every name, noun, place, colour, day and number."""
    stock = (
        words.NAMES,
        words.OBJECTS,
        words.PLACES,
        words.ITEMS,
        words.COLOURS,
        words.DAYS,
        words.NUMBERS,
        words.KINDS,
    )
    return [word for group in stock for word in group]


def split_words(tokenizer: Any) -> list[str]:
    """List the words of `must_be_whole` (after a space, and names also without) that the tokenizer splits."""
    texts = [" " + word for word in must_be_whole()] + list(words.NAMES)
    return [text for text in texts if len(tokenizer.encode(text)) != 1]


@cache
def telling_ids(tokenizer: Any) -> frozenset[int]:
    """Give the ids of names, things, places and colours inside a text."""
    stock = (words.NAMES, words.OBJECTS, words.PLACES, words.COLOURS)
    return frozenset(tokenizer.encode(" " + word)[0] for group in stock for word in group)


def encode_document(document: Document, tokenizer: Any, rng: random.Random) -> tuple[list[int], list[float]]:
    """Turn a document into ids and loss weights (of each id as a target), with begin and end ids around it."""
    ids, weights = [BEGIN_ID], [0.0]
    if document.random_tokens:
        chosen = rng.choices(range(FIRST_BYTE_ID, tokenizer.get_piece_size()), k=document.random_tokens)
        ids += chosen + chosen
        weights += [0.0] * (len(chosen) + 1) + [1.0] * (len(chosen) - 1)
    telling = telling_ids(tokenizer) if document.sort == "story" else frozenset()
    for text, weight in document.pieces:
        piece_ids = tokenizer.encode(text)
        ids += piece_ids
        weights += [weight * (TELLING_FACTOR if each in telling else 1.0) for each in piece_ids]
    return [*ids, END_ID], [*weights, 0.5]

"""SentencePiece from a trained model, its metadata, and llama2.c's pieces; the library is the oracle."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from haaw.errors import BadInputError
from haaw.tokenizers import SentencePieceTokenizer
from haaw.tokenizers.sentencepiece_proto import read_flags, without_dummy_prefix

Train = Callable[..., bytes]


def library(model: bytes) -> Any:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    return processor


UNIGRAM = {
    "model_type": "unigram",
    "vocab_size": 180,
    "byte_fallback": False,
    "hard_vocab_limit": False,
    "normalization_rule_name": "nmt_nfkc",
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"remove_extra_whitespaces": True},
        {"add_dummy_prefix": False},
        {"add_dummy_prefix": False, "remove_extra_whitespaces": True},
        {**UNIGRAM, "remove_extra_whitespaces": True},
        {"user_defined_symbols": ["<tag>", "▁▁▁"]},
    ],
    ids=str,
)
def test_decoding_agrees_with_the_library_on_valid_sequences(
    sentencepiece_model: Train, options: dict[str, Any], fresh_random: random.Random
) -> None:
    model = sentencepiece_model(**options)
    tokenizer, oracle = SentencePieceTokenizer.from_model(model), library(model)
    compared = 0
    for _ in range(1_500):
        length = fresh_random.randrange(1, 12)
        ids = [fresh_random.randrange(tokenizer.vocabulary_size) for _ in range(length)]
        if fresh_random.random() < 0.8:  # bytes are seldom valid text by chance
            ids = [i for i in ids if not oracle.is_byte(i)]
        # The library ends a character at a control token that stands among its bytes; ours, which hides it, goes on.
        if any(oracle.is_control(i) for i in ids) and any(oracle.is_byte(i) for i in ids):
            continue
        ours = tokenizer.decode(ids)
        if "\ufffd" not in ours:
            assert ours == oracle.decode(ids), [oracle.id_to_piece(i) for i in ids]
            compared += 1
    assert compared > 1_000


@pytest.mark.parametrize(
    "options", [{}, {"add_dummy_prefix": False}, {"remove_extra_whitespaces": True}], ids=str
)
def test_a_model_rebuilt_from_metadata_gives_the_ids_of_the_model(
    sentencepiece_model: Train,
    sentencepiece_gguf: Callable[[bytes], dict[str, Any]],
    options: dict[str, Any],
    texts: list[str],
    fresh_random: random.Random,
) -> None:
    model = sentencepiece_model(**options)
    metadata = sentencepiece_gguf(model) | {
        "tokenizer.ggml.add_space_prefix": options.get("add_dummy_prefix", True),
        "tokenizer.ggml.remove_extra_whitespaces": options.get("remove_extra_whitespaces", False),
    }
    tokenizer, oracle = SentencePieceTokenizer.from_gguf(metadata), library(model)
    alphabet = "theanour  lig\n日é.😀"
    many = ["".join(fresh_random.choices(alphabet, k=fresh_random.randrange(1, 30))) for _ in range(300)]
    for text in [*texts, *many]:
        ids = oracle.encode(text)
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == oracle.decode(ids)


def test_text_after_a_control_token_begins_with_a_space_or_does_not_as_declared(
    sentencepiece_model: Train,
) -> None:
    """S28: a space after a special token in one implementation and not in the other."""
    model = sentencepiece_model()
    oracle = library(model)
    legacy = SentencePieceTokenizer.from_model(model, after_special="prefix")
    later = SentencePieceTokenizer.from_model(model, after_special="plain")
    control = oracle.piece_to_id("<|im_start|>")
    bare = library(without_dummy_prefix(model))
    assert legacy.encode("a<|im_start|>the", special="parse") == [
        *oracle.encode("a"),
        control,
        *oracle.encode("the"),
    ]
    assert later.encode("a<|im_start|>the", special="parse") == [
        *oracle.encode("a"),
        control,
        *bare.encode("the"),
    ]


def test_flags_are_read_from_the_model_and_overridden_at_its_end(sentencepiece_model: Train) -> None:
    model = sentencepiece_model(remove_extra_whitespaces=False)
    assert read_flags(model).add_dummy_prefix
    assert not read_flags(model).remove_extra_whitespaces
    assert not read_flags(without_dummy_prefix(model)).add_dummy_prefix


def test_one_unknown_piece_is_kept_where_a_file_types_others_as_unknown(
    sentencepiece_model: Train, sentencepiece_gguf: Callable[[bytes], dict[str, Any]]
) -> None:
    """Phi-3's file types <unk> as a control token and 53 padding tokens as unknown."""
    metadata = sentencepiece_gguf(sentencepiece_model())
    plain = SentencePieceTokenizer.from_gguf(metadata)
    count = len(metadata["tokenizer.ggml.tokens"])
    odd = {
        **metadata,
        "tokenizer.ggml.tokens": [*metadata["tokenizer.ggml.tokens"], "[PAD1]", "[PAD2]"],
        "tokenizer.ggml.scores": [*metadata["tokenizer.ggml.scores"], -1000.0, -1000.0],
        "tokenizer.ggml.token_type": [3, *metadata["tokenizer.ggml.token_type"][1:], 2, 2],
    }
    tokenizer = SentencePieceTokenizer.from_gguf(odd)
    assert tokenizer.vocabulary_size == count + 2
    assert tokenizer.encode("the [PAD1] girl") == plain.encode("the [PAD1] girl")


def test_phi_3_markers_swallow_the_white_space_after_them(
    sentencepiece_model: Train, sentencepiece_gguf: Callable[[bytes], dict[str, Any]]
) -> None:
    metadata = sentencepiece_gguf(sentencepiece_model())
    phi = SentencePieceTokenizer.from_gguf({**metadata, "general.name": "Phi3 mini"})
    other = SentencePieceTokenizer.from_gguf(metadata)
    assert phi.encode("<|im_end|>\n the", special="parse") == other.encode("<|im_end|>the", special="parse")
    assert other.encode("<|im_end|>\n the", special="parse") != other.encode("<|im_end|>the", special="parse")


def test_llama2_c_pieces_stand_for_themselves() -> None:
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(f"<0x{b:02X}>".encode() for b in range(256))]
    pieces += [b" ", b"a", b"t", b" a", b" at"]
    scores = [0.0] * 259 + [-3.0, -3.0, -3.0, 0.0, -1.0]
    tokenizer = SentencePieceTokenizer.from_pieces(pieces, scores)
    # " at" = " " + "a" + "t" -> " a" (score 0) -> " at"; the prefix space makes "at" the same
    assert tokenizer.encode("at") == [263]
    assert tokenizer.encode_prompt("at a") == [1, 263, 262]
    assert tokenizer.decode([1, 263, 262]) == "at a"
    assert tokenizer.encode("é") == [259, 3 + 0xC3, 3 + 0xA9]


def test_bytes_that_are_no_model_are_refused(sentencepiece_model: Train, fresh_random: random.Random) -> None:
    model = sentencepiece_model()
    for broken in (b"", b"\x00", b"not a model", model[: len(model) // 2], model[:-3], b"\xff" * 40):
        with pytest.raises(BadInputError):
            SentencePieceTokenizer.from_model(broken)
    for _ in range(60):
        damaged = bytearray(model)
        for _ in range(fresh_random.randrange(1, 6)):
            damaged[fresh_random.randrange(len(damaged))] = fresh_random.randrange(256)
        try:
            SentencePieceTokenizer.from_model(bytes(damaged)).encode("the girl")
        except BadInputError:
            continue


def test_roles_outside_the_pieces_are_refused() -> None:
    with pytest.raises(BadInputError, match="bos_id is 9"):
        SentencePieceTokenizer.from_pieces([b"<unk>", b"a", b"b"], [0.0] * 3, bos_id=9)
    with pytest.raises(BadInputError, match="3 pieces but 2 scores"):
        SentencePieceTokenizer.from_pieces([b"<unk>", b"a", b"b"], [0.0] * 2)
    with pytest.raises(BadInputError, match="not UTF-8"):
        SentencePieceTokenizer.from_pieces([b"<unk>", b"\xff", b"b"], [0.0] * 3)

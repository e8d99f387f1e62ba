"""A tokenizer.json: the declared pipeline, with the tokenizers library as the oracle."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from haaw.errors import BadInputError
from haaw.tokenizers import JsonTokenizer, TextPart

JsonOf = Callable[[str], str]
ALL = (
    "byte-level",
    "spm-like",
    "spm-like legacy",
    "wordpiece",
    "metaspace",
    "metaspace-never",
    "suffix",
    "strip",
    "none",
)


def library(text: str) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(text)


@pytest.mark.parametrize("name", ALL)
def test_decoding_agrees_with_the_library_on_random_ids(
    json_of: JsonOf, name: str, fresh_random: random.Random
) -> None:
    """S08: the decoder's steps were skipped. 1,000 lists of ids, those without invalid bytes compared."""
    text = json_of(name)
    tokenizer, oracle = JsonTokenizer(text), library(text)
    compared = 0
    while compared < 1_000:
        ids = [
            fresh_random.randrange(tokenizer.vocabulary_size) for _ in range(fresh_random.randrange(1, 12))
        ]
        if name.startswith("spm") and fresh_random.random() < 0.9:
            ids = [i for i in ids if not 3 <= i < 259]
        if name == "strip" and not tokenizer.decode(ids).strip():
            continue  # the library panics where both ends strip the same characters
        ours = tokenizer.decode(ids)
        if "\ufffd" not in ours:
            assert ours == oracle.decode(ids), [oracle.id_to_token(i) for i in ids]
            compared += 1


@pytest.mark.parametrize("name", ALL)
def test_encoding_agrees_with_the_library(json_of: JsonOf, name: str, texts: list[str]) -> None:
    text = json_of(name)
    tokenizer, oracle = JsonTokenizer(text), library(text)
    for sample in texts:
        assert (
            tokenizer.encode(sample, special="parse") == oracle.encode(sample, add_special_tokens=False).ids
        )


def test_a_space_after_a_special_token_follows_the_file(json_of: JsonOf) -> None:
    """S28: legacy=False gives '->' after <s>, legacy=True '▁->'."""
    later, legacy = JsonTokenizer(json_of("spm-like")), JsonTokenizer(json_of("spm-like legacy"))

    def tokens(tokenizer: JsonTokenizer) -> list[str | None]:
        return [tokenizer.token(i) for i in tokenizer.encode("a:<s>->", special="parse")]

    assert tokens(later) == ["▁a", ":", "<s>", "->"]
    assert tokens(legacy) == ["▁a", ":", "<s>", "▁->"]


@pytest.mark.parametrize("name", ["byte-level", "spm-like", "spm-like legacy"])
def test_text_beside_a_forged_token_encodes_as_the_library_does_beside_a_real_one(
    json_of: JsonOf, name: str
) -> None:
    """A stretch after a control token is encoded by the rules for "after a special token"."""
    text = json_of(name)
    tokenizer, oracle = JsonTokenizer(text), library(text)
    parts = [TextPart("Hi <s>", "parse"), TextPart("a <s> a", "text"), TextPart("<s>a:", "parse")]
    ids = tokenizer.encode_parts(parts)
    bos = oracle.token_to_id("<s>")
    assert ids.count(bos) == 2
    first, last = ids.index(bos), len(ids) - 1 - ids[::-1].index(bos)
    assert ids[: first + 1] == oracle.encode("Hi <s>", add_special_tokens=False).ids
    assert ids[last:] == oracle.encode("x<s>a:", add_special_tokens=False).ids[-len(ids[last:]) :]
    assert tokenizer.decode(ids[first:last], special="show", begins="middle").endswith("a <s> a")
    spans = tokenizer.encode_parts_spans(parts)
    assert [s.id for s in spans] == ids
    joined = "".join(p.text for p in parts)
    assert {i for s in spans for i in range(s.start, s.end)} == set(range(len(joined)))


def test_bos_comes_from_the_post_processor_or_the_config(json_of: JsonOf) -> None:
    text = json_of("byte-level")
    assert JsonTokenizer(text).encode_prompt("")[0] == 0
    assert not JsonTokenizer(text, config={"add_bos_token": False}).add_bos
    spm = JsonTokenizer(json_of("spm-like"), config={"bos_token": {"content": "<s>"}, "add_bos_token": True})
    assert spm.encode_prompt("a")[0] == 1


def test_end_ids_are_the_union_of_all_files(json_of: JsonOf) -> None:
    """S18: one of two end tokens was known."""
    tokenizer = JsonTokenizer(
        json_of("spm-like"),
        config={"eos_token": "</s>"},
        end_configs=[{"eos_token_id": 5}, {"eos_token_id": [2, 9]}, None, {}],
    )
    assert tokenizer.eos_ids == {2, 5, 9}


def test_truncation_and_padding_of_the_file_are_not_applied(json_of: JsonOf) -> None:
    """S25: a prompt must not be cut in silence."""
    oracle = library(json_of("byte-level"))
    oracle.enable_truncation(3)
    oracle.enable_padding(length=50)
    assert len(JsonTokenizer(oracle.to_str()).encode("hello there little girl")) > 3


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"model": 3}',
        "[" * 100_000,
        '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}',
        '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}',
        '{"version": "1.0", "model": {"type": "WordLevel", "vocab": {}, "unk_token": "x"}}',
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(broken: str) -> None:
    with pytest.raises(BadInputError, match=r"tokenizer\.json"):
        JsonTokenizer(broken)


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "CTC", "pad_token": "p", "word_delimiter_token": "|", "cleanup": True},
        {
            "type": "Sequence",
            "decoders": [{"type": "Fuse"}, {"type": "WordPiece", "prefix": "", "cleanup": True}],
        },
    ],
)
def test_a_decoder_that_is_not_known_is_refused_by_name(
    json_of: JsonOf, changed_json: Callable[..., str], decoder: dict[str, Any]
) -> None:
    text = changed_json(json_of("byte-level"), decoder=decoder)
    with pytest.raises(BadInputError, match=r"CTC|WordPiece"):
        JsonTokenizer(text)


def test_names_that_are_not_in_the_vocabulary_are_refused(json_of: JsonOf) -> None:
    with pytest.raises(BadInputError, match=r"'<nope>' as bos_token"):
        JsonTokenizer(json_of("byte-level"), config={"bos_token": "<nope>"})
    with pytest.raises(BadInputError, match="eos_token_id names 99999"):
        JsonTokenizer(json_of("byte-level"), end_configs=[{"eos_token_id": [1, 99_999]}])
    with pytest.raises(BadInputError, match="eos_token_id names 'x'"):
        JsonTokenizer(json_of("byte-level"), end_configs=[{"eos_token_id": "x"}])


def test_added_tokens_that_are_no_tokens_are_refused(
    json_of: JsonOf, changed_json: Callable[..., str]
) -> None:
    for added in (3, [3], [{"id": 0}], [{"id": 0, "content": ""}]):
        with pytest.raises(BadInputError, match=r"tokenizer\.json"):
            JsonTokenizer(changed_json(json_of("byte-level"), added_tokens=added))


def test_the_json_of_the_tests_holds_what_it_says(json_of: JsonOf) -> None:
    assert json.loads(json_of("spm-like"))["pre_tokenizer"]["prepend_scheme"] == "first"
    assert json.loads(json_of("spm-like legacy"))["normalizer"]["normalizers"][0]["type"] == "Prepend"

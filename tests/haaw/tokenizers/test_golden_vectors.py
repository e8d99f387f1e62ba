"""Ids that independent programs give for the same vocabularies (reference folder; skipped without it)."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from haaw.tokenizers import SentencePieceTokenizer, chat_template_from_gguf, tokenizer_from_gguf

gguf = pytest.importorskip("weights_tools.formats.gguf")


def vectors(golden: Path, name: str) -> list[tuple[str, list[int]]]:
    """The texts and ids of one vocabulary, as llama.cpp writes them."""
    stem = golden / "tokenizers" / f"ggml-vocab-{name}.gguf"
    with Path(f"{stem}.inp").open(encoding="utf-8", newline="") as file:
        *texts, end = file.read().split("\n__ggml_vocab_test__\n")
    assert end == ""
    lines = Path(f"{stem}.out").read_text().splitlines()
    return [(text, [int(i) for i in line.split()]) for text, line in zip(texts, lines, strict=True)]


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "llama-bpe", "qwen2", "phi-3", "falcon"])
def test_every_text_has_exactly_the_published_ids(golden: Path, name: str) -> None:
    with gguf.open_gguf(golden / "tokenizers" / f"ggml-vocab-{name}.gguf") as file:
        tokenizer = tokenizer_from_gguf(file.metadata)
    cases = vectors(golden, name)
    assert len(cases) == 46
    for text, ids in cases:
        assert tokenizer.encode(text) == ids, text
        assert [span.id for span in tokenizer.encode_spans(text)] == ids
        assert tokenizer.decode(ids) == text
        detokenizer = tokenizer.detokenizer()
        assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == text


def test_smollm2_prompts_and_chats_have_the_reference_ids(golden: Path, smollm2_file: Path) -> None:
    with gguf.open_gguf(smollm2_file) as file:
        smollm2 = dict(file.metadata)
    tokenizer = tokenizer_from_gguf(smollm2)
    template = chat_template_from_gguf(smollm2, tokenizer)
    assert template is not None
    assert tokenizer.eos_ids == {0, 2}
    for case in json.loads((golden / "smollm2" / "cases.json").read_text())["cases"]:
        if "prompt" in case:
            assert tokenizer.encode_prompt(case["prompt"]) == case["ids"]
        else:
            chat = template.render_to_ids(case["messages"], tokenizer)
            assert chat.text == case["rendered"]
            assert list(chat.ids) == case["ids"]
            assert chat.warnings == ()
            for span in chat.messages:
                content = case["messages"][span.message]["content"]
                assert tokenizer.decode(chat.ids[span.start : span.end]) == content
        if not case["text"].endswith("\ufffd"):
            assert tokenizer.decode(case["greedy"], special="show", begins="middle") == case["text"]


def test_llama2_c_pieces_encode_a_story_and_give_it_back(golden: Path) -> None:
    import struct

    data = (golden / "stories260k" / "tok512.bin").read_bytes()
    pieces, scores, position = [], [], 4
    while position < len(data):
        score, length = struct.unpack_from("<fi", data, position)
        position += 8 + length
        scores.append(score)
        pieces.append(data[position - length : position])
    tokenizer = SentencePieceTokenizer.from_pieces(pieces, scores)
    assert tokenizer.vocabulary_size == 512
    assert tokenizer.eos_ids == {1, 2}
    story = "Once upon a time, there was a little girl named Lily."
    assert tokenizer.decode(tokenizer.encode(story)) == story


def test_building_again_gives_the_same_ids(golden: Path) -> None:
    """Metadata that was read lazily once must not be needed afterwards."""
    with gguf.open_gguf(golden / "tokenizers" / "ggml-vocab-llama-spm.gguf") as file:
        plain = {k: v for k, v in file.metadata.items() if k.startswith(("tokenizer.", "general."))}
    again: Callable[[Any], Any] = pickle.loads(pickle.dumps(plain))
    assert tokenizer_from_gguf(again).encode("Hello") == tokenizer_from_gguf(plain).encode("Hello") == [15043]

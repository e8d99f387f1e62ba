"""Choosing the kind of tokenizer, and folders in Hugging Face's layout."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from haaw.errors import BadInputError, MissingLibraryError
from haaw.tokenizers import (
    ByteLevelTokenizer,
    ChatTemplate,
    JsonTokenizer,
    SentencePieceTokenizer,
    end_ids,
    tokenizer_from_files,
    tokenizer_from_folder,
    tokenizer_from_gguf,
)


def test_the_metadata_chooses_the_kind(
    byte_level_gguf: Callable[..., dict[str, Any]],
    sentencepiece_model: Callable[..., bytes],
    sentencepiece_gguf: Callable[[bytes], dict[str, Any]],
) -> None:
    assert isinstance(tokenizer_from_gguf(byte_level_gguf()), ByteLevelTokenizer)
    metadata = sentencepiece_gguf(sentencepiece_model())
    assert isinstance(tokenizer_from_gguf(metadata), SentencePieceTokenizer)


def test_a_folder_with_a_tokenizer_json_uses_it(tmp_path: Path, json_of: Callable[[str], str]) -> None:
    (tmp_path / "tokenizer.json").write_text(json_of("byte-level"), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "<|im_end|>", "chat_template": "old"})
    )
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9]}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 5}))
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}new")
    tokenizer, template = tokenizer_from_folder(tmp_path)
    assert isinstance(tokenizer, JsonTokenizer)
    assert tokenizer.eos_ids == {2, 5, 9}
    assert tokenizer.bos_id == 0
    assert template is not None
    assert template.render([{"role": "user", "content": "x"}]) == "<s>new"


def test_a_folder_with_a_sentencepiece_model_uses_it(
    tmp_path: Path, sentencepiece_model: Callable[..., bytes]
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"legacy": False, "add_bos_token": False}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [2, 4]}))
    tokenizer, template = tokenizer_from_folder(tmp_path)
    assert isinstance(tokenizer, SentencePieceTokenizer)
    assert tokenizer.eos_ids == {2, 4}
    assert not tokenizer.add_bos
    assert template is None
    plain = SentencePieceTokenizer.from_model(sentencepiece_model(), after_special="plain")
    assert tokenizer.encode("a<|im_end|>b", special="parse") == plain.encode("a<|im_end|>b", special="parse")


def test_tokens_added_beside_a_sentencepiece_model_are_not_ignored(
    sentencepiece_model: Callable[..., bytes],
) -> None:
    with pytest.raises(BadInputError, match=r"'<new>' as id 99999.*tokenizer\.json"):
        tokenizer_from_files(
            sentencepiece_model=sentencepiece_model(),
            tokenizer_config={"added_tokens_decoder": {"99999": {"content": "<new>"}}},
        )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"\xff\xfe", "not UTF-8"),
        ("tokenizer.json", b"{", "not valid JSON"),
        ("tokenizer_config.json", b"[]", "one JSON object"),
        ("config.json", b"nonsense", r"config\.json is not valid JSON"),
        ("tokenizer.model", b"nonsense", "SentencePiece"),
    ],
)
def test_a_broken_file_of_a_folder_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInputError, match=message):
        tokenizer_from_folder(tmp_path)


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        tokenizer_from_folder(tmp_path)
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(BadInputError, match="not a file"):
        tokenizer_from_folder(tmp_path)


def test_end_ids_are_joined_from_every_source() -> None:
    assert end_ids(10, [2], {"eos_token_id": [2, 9]}, {"eos_token_id": 3}, None, {"eos_token_id": None}) == {
        2,
        3,
        9,
    }
    for wrong in (10, -1, "2", [[1]], 1.5):
        with pytest.raises(BadInputError, match="eos_token_id"):
            end_ids(10, [], {"eos_token_id": wrong})


@pytest.mark.parametrize(
    ("module", "act"),
    [
        ("tokenizers", "byte_level"),
        ("sentencepiece", "pieces"),
        ("jinja2", "chat"),
    ],
)
def test_a_missing_library_is_named_with_the_way_to_install_it(
    monkeypatch: pytest.MonkeyPatch, byte_level_gguf: Callable[..., dict[str, Any]], module: str, act: str
) -> None:
    metadata = byte_level_gguf()
    acts: dict[str, Callable[[], object]] = {
        "byte_level": lambda: ByteLevelTokenizer.from_gguf(metadata),
        "pieces": lambda: SentencePieceTokenizer.from_pieces([b"<unk>", b"a", b"b", b"c"], [0.0] * 4),
        "chat": lambda: ChatTemplate("x"),
    }
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingLibraryError, match=f"pip install {module}"):
        acts[act]()


def test_importing_the_package_loads_no_library() -> None:
    import subprocess

    code = (
        "import sys, haaw.tokenizers; "
        "print(sorted({'numpy', 'tokenizers', 'sentencepiece', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

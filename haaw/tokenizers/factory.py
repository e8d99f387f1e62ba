"""From plain metadata to a ready tokenizer and chat template, choosing the kind.

Receives mappings, texts and bytes; reads no model file. (A folder's tokenizer files are opened by
`tokenizer_from_folder`, since they are small and belong to the tokenizer alone.)
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from haaw.errors import BadInputError
from haaw.tokenizers.byte_level import ByteLevelTokenizer
from haaw.tokenizers.chat_template import ChatTemplate
from haaw.tokenizers.gguf_metadata import metadata_id, metadata_text
from haaw.tokenizers.libraries import one_line
from haaw.tokenizers.protocol import Tokenizer
from haaw.tokenizers.sentencepiece_model import SentencePieceTokenizer
from haaw.tokenizers.tokenizer_json import JsonTokenizer
from haaw.tokenizers.vocabulary import end_ids

MOST_FILE_BYTES = 512 * 2**20


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF's metadata declares (`tokenizer.ggml.model` "gpt2" or "llama").

    BadInputError for another kind, an unknown pre-tokenizer or a vocabulary that does not add up.
    """
    kind = metadata_text(metadata, "tokenizer.ggml.model")
    if kind == "gpt2":
        return ByteLevelTokenizer.from_gguf(metadata)
    if kind == "llama":
        return SentencePieceTokenizer.from_gguf(metadata)
    if kind is None:
        raise BadInputError("The model file declares no tokenizer (tokenizer.ggml.model is missing).")
    raise BadInputError(
        f"The tokenizer kind {one_line(repr(kind), most_chars=60)} is not supported; known are "
        "'gpt2' (byte-level BPE) and 'llama' (SentencePiece)."
    )


def chat_template_from_gguf(metadata: Mapping[str, Any], tokenizer: Tokenizer) -> ChatTemplate | None:
    """The chat template of a GGUF with its token names, or None where the file has none."""
    source = metadata_text(metadata, "tokenizer.chat_template")
    if source is None:
        return None

    def token(role: str) -> str | None:
        token_id = metadata_id(metadata, f"tokenizer.ggml.{role}_token_id", tokenizer.vocabulary_size)
        return None if token_id is None else tokenizer.token_text(token_id)

    others = {"unk_token": token("unknown"), "pad_token": token("padding")}
    return ChatTemplate(
        source,
        bos_token=token("bos"),
        eos_token=token("eos"),
        other_tokens={name: text for name, text in others.items() if text is not None},
    )


def tokenizer_from_files(
    *,
    tokenizer_json: str | None = None,
    sentencepiece_model: bytes | None = None,
    tokenizer_config: Mapping[str, Any] | None = None,
    generation_config: Mapping[str, Any] | None = None,
    model_config: Mapping[str, Any] | None = None,
) -> Tokenizer:
    """The tokenizer of a Hugging Face folder from its files' contents; tokenizer.json goes before a `.model`.

    The ids that end an answer are the union of what all files name. BadInputError where neither is given.
    """
    configs = (model_config, generation_config)
    if tokenizer_json is not None:
        return JsonTokenizer(tokenizer_json, config=tokenizer_config, end_configs=configs)
    if sentencepiece_model is None:
        raise BadInputError("The folder holds neither tokenizer.json nor tokenizer.model, so no tokenizer.")
    config = tokenizer_config or {}
    add_bos = config.get("add_bos_token")
    tokenizer = SentencePieceTokenizer.from_model(
        sentencepiece_model,
        add_bos=add_bos if isinstance(add_bos, bool) else None,
        after_special="plain" if config.get("legacy") is False else "prefix",
    )
    _refuse_added_tokens(config, tokenizer.vocabulary_size)
    ends = end_ids(tokenizer.vocabulary_size, tokenizer.eos_ids, *configs)
    return tokenizer.with_eos_ids(ends)


def tokenizer_from_folder(folder: str | os.PathLike[str]) -> tuple[Tokenizer, ChatTemplate | None]:
    """The tokenizer and the chat template, if any, of a folder in Hugging Face's layout."""
    place = Path(folder)
    config = _read_json(place / "tokenizer_config.json")
    declared = _read_bytes(place / "tokenizer.json")
    tokenizer = tokenizer_from_files(
        tokenizer_json=None if declared is None else _as_text(declared, "tokenizer.json"),
        sentencepiece_model=_read_bytes(place / "tokenizer.model") if declared is None else None,
        tokenizer_config=config,
        generation_config=_read_json(place / "generation_config.json"),
        model_config=_read_json(place / "config.json"),
    )
    jinja = _read_bytes(place / "chat_template.jinja")
    source = None if jinja is None else _as_text(jinja, "chat_template.jinja")
    return tokenizer, chat_template_from_config(config or {}, source)


def chat_template_from_config(config: Mapping[str, Any], source: str | None = None) -> ChatTemplate | None:
    """The chat template of a tokenizer_config.json with its token names, or None; `source` replaces its own.

    Where the config lists several templates by name, the one named "default" is taken.
    """
    declared = config.get("chat_template") if source is None else source
    if isinstance(declared, list):
        named = {t.get("name"): t.get("template") for t in declared if isinstance(t, Mapping)}
        declared = named.get("default")
    if declared is None:
        return None

    def token(role: str) -> str | None:
        named = config.get(role)
        text = named.get("content") if isinstance(named, Mapping) else named
        return text if isinstance(text, str) else None

    roles = ("unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
    others = {role: text for role in roles if (text := token(role)) is not None}
    return ChatTemplate(
        declared, bos_token=token("bos_token"), eos_token=token("eos_token"), other_tokens=others
    )


def _refuse_added_tokens(config: Mapping[str, Any], pieces: int) -> None:
    """A `.model` holds no tokens that were added later; without them the ids would be wrong."""
    added = config.get("added_tokens_decoder")
    for token_id, token in added.items() if isinstance(added, Mapping) else ():
        if str(token_id).isdecimal() and int(token_id) >= pieces:
            content = token.get("content") if isinstance(token, Mapping) else token
            raise BadInputError(
                f"tokenizer_config.json adds {one_line(repr(content), most_chars=60)} as id {token_id}, "
                "which tokenizer.model does not hold; this folder needs its tokenizer.json."
            )


def _read_json(path: Path) -> Mapping[str, Any] | None:
    data = _read_bytes(path)
    if data is None:
        return None
    try:
        value = json.loads(_as_text(data, path.name))
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadInputError):
            raise
        raise BadInputError(f"{path.name} is not valid JSON: {one_line(str(error))}") from None
    if not isinstance(value, dict):
        raise BadInputError(f"{path.name} must hold one JSON object.")
    return value


def _read_bytes(path: Path) -> bytes | None:
    """A file's content, None where there is none; BadInputError where it is too large or unreadable."""
    try:
        if not path.exists():
            return None
        if not path.is_file():
            raise BadInputError(f"{path.name} is not a file.")
        size = path.stat().st_size
        if size > MOST_FILE_BYTES:
            raise BadInputError(f"{path.name} has {size} bytes; allowed are {MOST_FILE_BYTES}.")
        return path.read_bytes()
    except OSError as error:
        raise BadInputError(f"{path.name} cannot be read: {error.strerror or error}.") from error


def _as_text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInputError(f"{name} is not UTF-8 text (byte {error.start}).") from None

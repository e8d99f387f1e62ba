"""A folder in Hugging Face's layout: config.json, safetensors (one file or shards), tokenizer, chat template."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from haaw.errors import BadInputError
from haaw.generation.language_model import LanguageModel
from haaw.loading.destination import Destination, assembled, untied_note
from haaw.loading.json_file import LARGEST_TOKENIZER_BYTES, read_bytes, read_json_object, read_text
from haaw.loading.noted import built, opened, read_weights
from haaw.models.families import family_named


def load_folder(folder: Path, name: str, destination: Destination) -> LanguageModel:
    """Loads a folder whose config names a family that HAAW runs; weights in float32, float16 or bfloat16.

    Errors: `BadInputError`, or `FormatError` of `weights_tools.formats`, for whatever does not add up.
    """
    from weights_tools.formats.safetensors_file import open_sharded

    values = read_json_object(folder / "config.json")
    if values is None:
        raise BadInputError(
            f"{folder} has weights but no config.json, which says what they are; fetch it too"
        )
    family = family_named(values.get("model_type"), 'config.json: "model_type"')
    config = family.config_from_hugging_face(values)
    tokenizer, template = _text_side(folder, values)
    with opened(open_sharded, folder, "safetensors") as file:
        transformer = read_weights(
            lambda loader: family.build_from_hugging_face(config, loader), destination, file
        )
    return assembled(
        name,
        str(folder),
        transformer,
        tokenizer,
        template=template,
        notes=(_ends_note(tokenizer), *untied_note(config, transformer)),
    )


def _text_side(folder: Path, model_config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Tokenizer and chat template; the ids that end an answer are those that any of the files names."""
    from haaw.tokenizers import chat_template_from_config, tokenizer_from_files

    tokenizer_config = read_json_object(folder / "tokenizer_config.json") or {}
    tokenizer_json = read_text(folder / "tokenizer.json", most_bytes=LARGEST_TOKENIZER_BYTES)
    sentencepiece = None
    if tokenizer_json is None:
        sentencepiece = read_bytes(folder / "tokenizer.model", most_bytes=LARGEST_TOKENIZER_BYTES)
    generation_config = read_json_object(folder / "generation_config.json")
    tokenizer = built(
        "tokenizer",
        lambda: tokenizer_from_files(
            tokenizer_json=tokenizer_json,
            sentencepiece_model=sentencepiece,
            tokenizer_config=tokenizer_config,
            generation_config=generation_config,
            model_config=model_config,
        ),
    )
    source = read_text(folder / "chat_template.jinja", most_bytes=LARGEST_TOKENIZER_BYTES)
    return tokenizer, built("chat template", lambda: chat_template_from_config(tokenizer_config, source))


def _ends_note(tokenizer: Any) -> str:
    ends = [f"{tokenizer.token_text(token_id)!r:.60} ({token_id})" for token_id in sorted(tokenizer.eos_ids)]
    if not ends:
        return "no file names a token that ends an answer; answers end at a limit"
    return f"an answer ends at {' or '.join(ends)}"

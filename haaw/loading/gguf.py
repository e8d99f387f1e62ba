"""A GGUF file: weights, tokenizer and chat template in one."""

from pathlib import Path

from haaw.generation.language_model import LanguageModel
from haaw.loading.destination import Destination, assembled
from haaw.loading.noted import built, opened, read_weights
from haaw.models.families import family_named

PROMPT_KEY = "haaw.prompt"
"""HAAW's own metadata key: "raw" where prompts are meant to be continued although there is a chat template."""


def load_gguf(path: Path, name: str, destination: Destination) -> LanguageModel:
    """Loads a GGUF file.

    Errors: `BadInputError`, or `FormatError` of `weights_tools.formats`, for whatever does not add up.
    """
    from haaw.tokenizers import chat_template_from_gguf, tokenizer_from_gguf
    from weights_tools.formats.gguf import open_gguf

    with opened(open_gguf, path, "gguf") as file:
        metadata = file.metadata
        family = family_named(metadata.get("general.architecture"), f"{path.name}: general.architecture")
        config = family.config_from_gguf(metadata, file.tensors)
        transformer = read_weights(lambda loader: family.build_from_gguf(config, loader), destination, file)
        tokenizer = built("tokenizer", lambda: tokenizer_from_gguf(metadata))
        return assembled(
            name,
            path.name,
            transformer,
            tokenizer,
            template=built("chat template", lambda: chat_template_from_gguf(metadata, tokenizer)),
            prompts="raw" if metadata.get(PROMPT_KEY) == "raw" else "chat",
        )

"""The model families that HAAW runs, by the name that files give them: where a config leads to code.

A new family is one file beside this one and one row here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from haaw.models import gpt2, llama
from haaw.models.protocol import ConfigError, Transformer
from haaw.models.weights import WeightLoader


@dataclass(frozen=True)
class Family:
    """How a family reads its configs, and its weights, from GGUF files and from Hugging Face folders."""

    config_from_gguf: Callable[[Mapping[str, Any], Mapping[str, Any]], Any]
    build_from_gguf: Callable[[Any, WeightLoader], Transformer]
    config_from_hugging_face: Callable[[Mapping[str, Any]], Any]
    build_from_hugging_face: Callable[[Any, WeightLoader], Transformer]


FAMILIES = {
    "llama": Family(
        llama.config_from_gguf,
        lambda config, loader: llama.build(config, loader, llama.GGUF_NAMES, layout="interleaved"),
        llama.config_from_hugging_face,
        lambda config, loader: llama.build(config, loader, llama.HUGGING_FACE_NAMES, layout="half-split"),
    ),
    "gpt2": Family(
        gpt2.config_from_gguf,
        lambda config, loader: gpt2.build(config, loader, gpt2.GGUF_NAMES, matrices="out-in"),
        gpt2.config_from_hugging_face,
        lambda config, loader: gpt2.build(
            config, loader, gpt2.hugging_face_names(loader.names), matrices="in-out"
        ),
    ),
}
"""By `general.architecture` of GGUF, which is also `model_type` of Hugging Face."""


def family_named(name: object, where: str) -> Family:
    """The family that a file names; `where` names the file and key in the error.

    Errors: `ConfigError` for any other name.
    """
    if isinstance(name, str) and name in FAMILIES:
        return FAMILIES[name]
    raise ConfigError(
        f"{where} is {name!r:.60}, an architecture that HAAW does not run; it runs: {', '.join(FAMILIES)}"
    )

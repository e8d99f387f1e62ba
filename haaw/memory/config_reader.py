"""The numbers of a config under any of the names that architectures give them, and what was assumed on the way."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from haaw.memory.shape import CacheShape
from haaw.models.keys import ConfigKeys
from haaw.models.protocol import ConfigError

NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "multi_query_group_num"),
    "width": ("hidden_size", "n_embd", "d_model", "dim"),
    "head_dim": ("head_dim", "kv_channels"),
    "positions": (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "seq_length",
        "max_sequence_length",
    ),
}
"""The names that architectures give to the same number."""
FAMILY_DEFAULTS: dict[str, dict[str, int]] = {
    # What the configs of these types leave out, as the library that they are written for fills it in.
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256, "sliding_window_pattern": 2},
    "gemma3_text": {"head_dim": 256, "sliding_window_pattern": 6, "positions": 131_072},
}


@dataclass(frozen=True)
class ModelNumbers:
    """What a model's file says about its cache; `positions` is its context, where it states one."""

    shape: CacheShape
    positions: int | None
    architecture: str
    assumptions: tuple[str, ...] = ()


class ConfigReader:
    """The keys of one config under any of their names, and the assumptions made on the way."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where
        self.keys = ConfigKeys(values, where)
        self.assumptions: list[str] = []
        self.defaults = FAMILY_DEFAULTS.get(str(values.get("model_type")), {})

    def number(self, name: str) -> int | None:
        """The number under whichever name the config uses; a type's own default; None without any."""
        given = {key: self.keys.integer(key) for key in NAMES[name] if self.values.get(key) is not None}
        if len(set(given.values())) > 1:
            told = " and ".join(f'"{key}" {value}' for key, value in given.items())
            raise ConfigError(f"{self.where}: {told} say different things; leave one out")
        if given:
            return next(iter(given.values()))
        if name in self.defaults:
            self.assumptions.append(
                f"{self.where} does not state {name}; {self.values['model_type']} has {self.defaults[name]:,}"
            )
            return self.defaults[name]
        return None

    def needed(self, name: str) -> int:
        """The same, for a number that there must be."""
        if (value := self.number(name)) is None:
            raise ConfigError(f"{self.where} lacks {' or '.join(NAMES[name])}; the arithmetic needs it")
        return value

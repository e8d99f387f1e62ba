"""Reading a config from a stranger: every key is used, known not to matter, or refused by name."""

from collections.abc import Iterable, Mapping
from typing import Any

from haaw.models.protocol import ConfigError

LARGEST_INTEGER = 1 << 31
HUGGING_FACE_LIBRARY_KEYS = (
    # About the file and its training.
    "architectures", "torch_dtype", "dtype", "transformers_version", "use_cache", "_name_or_path",
    "initializer_range", "transformers.js_config", "_attn_implementation_autoset", "tokenizer_class",
    "finetuning_task", "task_specific_params",
    # About what the library returns.
    "output_attentions", "output_hidden_states", "output_scores", "return_dict", "return_dict_in_generate",
    "id2label", "label2id", "problem_type", "torchscript", "use_bfloat16", "tf_legacy_loss",
    "chunk_size_feed_forward",
    # About generation, which has settings of its own; the ids that end an answer are read with the tokenizer.
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id", "prefix",
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
    "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences",
    "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens",
    # About encoders, of which there is none (see `is_encoder_decoder`).
    "is_decoder", "cross_attention_hidden_size", "tie_encoder_decoder",
)  # fmt: skip
"""What `transformers` writes into the config of any family, and what never changes the result."""


class ConfigKeys:
    """A config's keys, ticked off as they are used; `what` names the config in errors."""

    def __init__(self, values: Mapping[str, Any], what: str) -> None:
        self._values = values
        self._what = what
        self._used: set[str] = set()

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least `least`."""
        value = self.get(key, default)
        if value is None:
            raise ConfigError(f'{self._what} lacks "{key}"')
        if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < LARGEST_INTEGER:
            raise ConfigError(
                f'{self._what}: "{key}" is {value!r:.60}; a whole number from {least} on is needed'
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive, finite number."""
        value = self.get(key, default)
        if value is None:
            raise ConfigError(f'{self._what} lacks "{key}"')
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise ConfigError(f'{self._what}: "{key}" is {value!r:.60}; a positive number is needed')
        return float(value)

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it stands."""
        self._used.add(key)
        value = self._values.get(key)
        return default if value is None else value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise ConfigError(f'{self._what}: "{key}" is {value!r:.60}; true or false is needed')
        return value

    def must_be(self, key: str, *allowed: Any) -> None:
        """Refuses any value but those; an absent key is fine."""
        value = self.get(key)
        plain = isinstance(value, bool | int | float | str | list | dict)  # an array has no one truth value
        if value is not None and not (plain and value in allowed):
            choice = " or ".join(map(repr, allowed))
            raise ConfigError(f'{self._what}: "{key}" is {value!r:.60}; HAAW runs only {choice}')

    def ignore(self, keys: Iterable[str]) -> None:
        """Keys known not to matter to the result."""
        self._used.update(keys)

    def finish(self) -> None:
        """Refuses keys that nobody asked for."""
        left = sorted(key for key in self._values if key not in self._used)
        if left:
            raise ConfigError(
                f'{self._what} has the unknown key "{left[0]}"'
                + (f" and {len(left) - 1} more" if len(left) > 1 else "")
                + "; it may change the result, so this model is not run"
            )

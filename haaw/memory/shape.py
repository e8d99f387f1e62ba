"""What decides how large a KV cache is: the numbers of a model that the arithmetic needs, checked."""

from dataclasses import dataclass
from fractions import Fraction

from haaw.errors import BadInputError

LARGEST = {
    "layers": 10_000,
    "kv_heads": 10_000,
    "head_dim": 65_536,
    "window": 2**31,
    "latent_width": 1_000_000,
    "rope_width": 65_536,
    "block_size": 2**20,
    "sinks": 2**20,
}
FINEST_ELEMENT = Fraction(1, 32)
LETTERS = {
    "f": "a layer that keeps every position",
    "w": "a layer with the window",
    "-": "a layer without a cache",
}


@dataclass(frozen=True)
class CacheShape:
    """The shape of a model's cache.

    `bytes_per_element` is a multiple of 1/32: 4, 2, 1, 0.5 (four bits), 0.5625 (four bits and a scale).
    `pattern` is repeated over the layers: `f` keeps every position, `w` only the last `window` ones, `-` has no
    cache of its own; "wwwwwf" is five with the window, then one without. The empty pattern is all `w` where
    there is a window, all `f` otherwise.
    `latent_width` R above 0: a position holds R + `rope_width` elements a layer (multi-head latent attention,
    DeepSeek-V2, arXiv:2405.04434, section 2.1) instead of 2 · kv_heads · head_dim.
    Errors: `BadInputError` for a number that no model has.
    """

    layers: int
    kv_heads: int
    head_dim: int
    bytes_per_element: float | Fraction = 2
    window: int | None = None
    pattern: str = ""
    latent_width: int = 0
    rope_width: int = 0
    block_size: int = 16
    sinks: int = 0

    def __post_init__(self) -> None:
        for name, largest in LARGEST.items():
            value = getattr(self, name)
            least = 0 if name in ("latent_width", "rope_width", "sinks") else 1
            if value is None and name == "window":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= largest:
                raise BadInputError(
                    f"{name} is {value!r:.40}; a whole number from {least} to {largest:,} is needed"
                )
        self._check_element()
        self._check_pattern()
        if self.rope_width and not self.latent_width:
            raise BadInputError(
                f"rope_width is {self.rope_width} without a latent_width; give both or neither"
            )

    def _check_element(self) -> None:
        value = self.bytes_per_element
        allowed = isinstance(value, int | float | Fraction) and not isinstance(value, bool)
        if not allowed or not FINEST_ELEMENT <= value <= 16:  # NaN fails both comparisons
            raise BadInputError(
                f"bytes_per_element is {value!r:.40}; a number from 1/32 to 16 is needed, such as 2, 1 or 0.5"
            )
        if Fraction(value) % FINEST_ELEMENT:
            raise BadInputError(
                f"bytes_per_element is {value!r:.40}; it must be a multiple of 1/32, such as 0.5"
            )

    def _check_pattern(self) -> None:
        if not isinstance(self.pattern, str) or len(self.pattern) > LARGEST["layers"]:
            raise BadInputError(f"pattern is {self.pattern!r:.40}; at most 10,000 letters are needed")
        strange = next((letter for letter in self.pattern if letter not in LETTERS), None)
        if strange is not None:
            told = ", ".join(f'"{letter}" ({meaning})' for letter, meaning in LETTERS.items())
            raise BadInputError(f"pattern has the letter {strange!r}; it is made of {told}")
        if "w" in self.pattern and self.window is None:
            raise BadInputError(
                f"pattern {self.pattern!r:.40} has layers with a window, but no window is given"
            )
        if self.window is not None and self.pattern and "w" not in self.pattern:
            raise BadInputError(
                f"window is {self.window}, but pattern {self.pattern!r:.40} has no layer that uses it (w)"
            )
        if self.full_layers + self.windowed_layers == 0:
            raise BadInputError(f"pattern {self.pattern!r:.40} leaves no layer of {self.layers} with a cache")

    def _count(self, letter: str) -> int:
        whole, rest = divmod(self.layers, len(self.pattern))
        return whole * self.pattern.count(letter) + self.pattern[:rest].count(letter)

    @property
    def windowed_layers(self) -> int:
        """Layers that need only the last `window` positions."""
        if not self.pattern:
            return self.layers if self.window is not None else 0
        return self._count("w")

    @property
    def full_layers(self) -> int:
        """Layers that need every position."""
        return self._count("f") if self.pattern else self.layers - self.windowed_layers

    @property
    def caching_layers(self) -> int:
        """Layers that have a cache of their own."""
        return self.full_layers + self.windowed_layers

    @property
    def elements_per_position(self) -> int:
        """Elements that one position takes in one layer."""
        if self.latent_width:
            return self.latent_width + self.rope_width
        return 2 * self.kv_heads * self.head_dim

    @property
    def bytes_per_layer_position(self) -> Fraction:
        """Bytes that one position takes in one layer, exactly."""
        return self.elements_per_position * Fraction(self.bytes_per_element)

"""The oracle of the caches: attention in float64 over all tokens at once, without any cache, written plainly."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from haaw.caches.protocol import Window
from haaw.models.pack import pack_tokens

Windows = Sequence[Window | None] | None


def sees(window: Window | None, query: int, key: int) -> bool:
    """Whether the token at `query` looks at the one at `key`."""
    if key > query:
        return False
    return window is None or key < window.sinks or query - key < window.tokens


def plain_attention(
    query_THC: np.ndarray, key_TKC: np.ndarray, value_TKC: np.ndarray, window: Window | None, scale: float
) -> np.ndarray:
    """(T, H·C): one query, one head and one sum after the other."""
    tokens, heads, channels = query_THC.shape
    mixed_THC = np.zeros((tokens, heads, channels))
    for query in range(tokens):
        seen = [key for key in range(tokens) if sees(window, query, key)]
        for head in range(heads):
            shared = head * key_TKC.shape[1] // heads
            scores_S = scale * key_TKC[seen, shared] @ query_THC[query, head]
            weights_S = np.exp(scores_S - scores_S.max())
            mixed_THC[query, head] = weights_S / weights_S.sum() @ value_TKC[seen, shared]
    return mixed_THC.reshape(tokens, -1)


@contextmanager
def without_cache(windows: Windows) -> Iterator[None]:
    """Puts the plain attention in the place of `attend` in every family."""

    def attend(query_THC: Any, key_TKC: Any, value_TKC: Any, pack: Any, masks: Any, *, layer, scale, heads):
        assert query_THC.dtype == np.float64
        return plain_attention(query_THC, key_TKC, value_TKC, windows[layer] if windows else None, scale)

    def no_masks(pack: Any, *, dtype: str) -> None:
        return None

    with mock.patch.multiple("haaw.models.llama", attend=attend, causal_masks=no_masks):
        with mock.patch.multiple("haaw.models.gpt2", attend=attend, causal_masks=no_masks):
            yield


def oracle_logits(model: Any, ids: Sequence[int], windows: Windows = None) -> np.ndarray:
    """Logits (T, V) of a float64 model for all `ids`, each token seeing what `windows` let it see."""
    nothing = SimpleNamespace(length=0)
    with without_cache(windows):
        return model.forward(pack_tokens([(ids, nothing)], model.prototype_Z), rows="all")

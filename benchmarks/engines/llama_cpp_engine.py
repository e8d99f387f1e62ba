"""llama.cpp through the C interface that llama-cpp-python exposes, on the GGUF file as it is: quantised weights.

So it reads about a sixth of the bytes that the float32 engines read; compare with that in mind.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.plan import Plan

PIECE_BYTES = 256


class LlamaCppEngine:
    """One context for one sequence; greedy choices over the scores of the last token."""

    prefill_variants = ("as it is",)
    decode_variants = ("as it is",)

    def __init__(self, plan: Plan) -> None:
        import llama_cpp  # type: ignore[import-not-found]
        import numpy

        self._library: Any = llama_cpp
        self._numpy = numpy
        self._silent = llama_cpp.llama_log_callback(lambda level, text, data: None)  # kept alive: C calls it
        llama_cpp.llama_log_set(self._silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_default_params()
        # Virtual CPUs may offer AMX without letting it be used; its special buffers then crash at loading.
        model.use_extra_bufts = not _offers_amx()
        self._model = llama_cpp.llama_model_load_from_file(plan.model.encode(), model)
        context = llama_cpp.llama_context_default_params()
        context.n_ctx, context.n_batch = plan.longest_tokens + 256, plan.longest_tokens
        context.n_threads = context.n_threads_batch = plan.threads
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocabulary_size = llama_cpp.llama_vocab_n_tokens(self._vocabulary)
        self._facts = {
            "version": f"llama-cpp-python {llama_cpp.__version__}",
            "threads": [f"llama.cpp: {plan.threads} threads, extra buffers {model.use_extra_bufts}"],
            "weights": f"of {Path(plan.model).name}",
            "weights_bytes": llama_cpp.llama_model_size(self._model),
        }

    def use(self, variant: str) -> None:
        pass

    def encode(self, text: str) -> list[int]:
        data = text.encode()
        ids = (self._library.llama_token * (len(data) + 8))()
        count = self._library.llama_tokenize(self._vocabulary, data, len(data), ids, len(ids), True, False)
        return list(ids[:count])

    def decode(self, ids: Sequence[int]) -> str:
        found = b""
        for token_id in ids:
            piece = ctypes.create_string_buffer(PIECE_BYTES)
            length = self._library.llama_token_to_piece(
                self._vocabulary, token_id, piece, PIECE_BYTES, 0, False
            )
            found += piece.raw[: max(0, length)]
        return found.decode("utf-8", "replace")

    def prefill(self, ids: Sequence[int]) -> int:
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)
        return self._run(ids)

    def step(self, token_id: int) -> int:
        return self._run([token_id])

    def _run(self, ids: Sequence[int]) -> int:
        tokens = (self._library.llama_token * len(ids))(*ids)
        status = self._library.llama_decode(
            self._context, self._library.llama_batch_get_one(tokens, len(ids))
        )
        if status:
            raise RuntimeError(f"llama_decode ended with status {status}")
        scores = self._library.llama_get_logits_ith(self._context, -1)
        return int(self._numpy.ctypeslib.as_array(scores, (self._vocabulary_size,)).argmax())

    def generate(self, ids: Sequence[int], tokens: int) -> list[int]:
        answer = [self.prefill(ids)]
        while len(answer) < tokens:
            answer.append(self.step(answer[-1]))
        return answer

    def facts(self) -> dict[str, Any]:
        return dict(self._facts)


def _offers_amx() -> bool:
    try:
        return "amx_tile" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False

"""What cannot be loaded is refused in one sentence that names it, without a large allocation.

FAULTS: S60 to S70 (weights and checkpoints), S23 (vocabularies without a start token).
"""

import os
import pickle
import resource
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gguf_models import CHAT_TEMPLATE, tiny_gguf, tiny_gguf_parts, write_gguf

import haaw
from haaw.errors import BadInputError, HaawError

MOST_GROWTH_BYTES = 64 * 2**20


def refused(path: Any, **options: Any) -> str:
    """The one sentence with which loading is refused; what it cost in memory is checked."""
    before = peak_bytes()
    with pytest.raises(HaawError) as caught:
        haaw.load(path, **options)
    assert peak_bytes() - before < MOST_GROWTH_BYTES
    message = str(caught.value)
    assert "\n" not in message
    assert 20 < len(message) < 600
    return message


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_a_small_model_loads_and_runs(tmp_path: Path) -> None:
    """The control: what the tests below spoil is sound to begin with."""
    model = haaw.load(tiny_gguf(tmp_path / "tiny.gguf", template=CHAT_TEMPLATE))
    assert model.prompt_form == "chat"
    assert model.generate("hello", max_tokens=3).finish.reason in ("length", "eos")
    assert model.generate("hello", form="raw", max_tokens=3).prompt_ids == (
        259,
        108,
        108,
        111,
    )  # "he", l, l, o


def as_file(content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / "bad.gguf"
        path.write_bytes(content)
        return path

    return write


def torch_checkpoint(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "bad.gguf", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"w": 1}))
    return folder / "bad.gguf"


def cut(keep: Callable[[int], int]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = tiny_gguf(folder / "bad.gguf")
        os.truncate(path, keep(path.stat().st_size))
        return path

    return write


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "bad.gguf")
    return folder / "bad.gguf"


FOREIGN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a missing file": (lambda folder: folder / "none.gguf", "none.gguf"),
    "a folder without a model": (lambda folder: folder, "holds no model"),
    "a pipe": (pipe, "bad.gguf"),
    "an unknown name": (lambda folder: "no-such-model", "haaw models list"),
    "a name that is far too long": (lambda folder: "a" * 5_000, "aaa"),
    "a name with a zero": (lambda folder: "a\0b.gguf", "a"),
    "nothing": (lambda folder: None, "None"),
    "a number": (lambda folder: 5, "5"),
    "an empty file": (as_file(b""), "empty"),
    "a text": (as_file(b"Once upon a time there was a model."), "not a GGUF file"),
    "a web page": (as_file(b"<!DOCTYPE html>\n<html>404</html>"), "web page"),
    "a zip archive": (torch_checkpoint, "ZIP"),
    "a pickle": (as_file(pickle.dumps({"w": [1.0]})), "pickle"),
    "a JSON text": (as_file(b'{"model_type": "llama"}'), "JSON"),
    "the magic alone": (as_file(b"GGUF"), "bad.gguf"),
    "a header of huge counts": (as_file(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60)), "bad.gguf"),
    "a header of nothing": (as_file(b"GGUF" + struct.pack("<IQQ", 3, 0, 0)), "architecture"),
    "half a file": (cut(lambda size: size // 2), "incomplete"),
    "all but the last byte": (cut(lambda size: size - 1), "incomplete"),
    "a header cut off": (cut(lambda size: 100), "bad.gguf"),
}


@pytest.mark.parametrize(("make", "says"), FOREIGN.values(), ids=FOREIGN.keys())
def test_what_is_no_model_is_named_for_what_it_is(make: Callable, says: str, tmp_path: Path) -> None:
    assert says in refused(make(tmp_path))


def llama(**changes: Any) -> dict[str, Any]:
    return {f"llama.{key.replace('__', '.')}": value for key, value in changes.items()}


def tokens(**changes: Any) -> dict[str, Any]:
    return {f"tokenizer.{key.replace('__', '.')}": value for key, value in changes.items()}


METADATA: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": ({"general.architecture": "mamba"}, "mamba"),
    "no heads": (llama(attention__head_count=0), "head_count"),
    "heads that share unevenly": (llama(attention__head_count_kv=3), "3"),
    "more heads than the tensors have": (llama(attention__head_count=8), "shape"),
    "2**31 layers": (llama(block_count=2**31), "block_count"),
    "2**31 - 1 layers": (llama(block_count=2**31 - 1), "blk.2"),
    "fewer layers than tensors": (llama(block_count=1), "blk.1"),
    "a thousand million tokens": (llama(vocab_size=10**9), "token_embd"),
    "a width of 2**31 - 1": (llama(embedding_length=2**31 - 1), "shape"),
    "a wide MLP": (llama(feed_forward_length=10**9), "ffn"),
    "wide heads": (
        llama(attention__key_length=10**8, attention__value_length=10**8, rope__dimension_count=10**8),
        "attn_q",
    ),
    "a negative count": (llama(block_count=-2), "block_count"),
    "a fraction": (llama(embedding_length=24.5), "embedding_length"),
    "a text": (llama(feed_forward_length="40"), "feed_forward_length"),
    "an array": (llama(attention__head_count=[4, 4]), "head_count"),
    "a huge count": (llama(context_length=2**63), "context_length"),
    "no context": (llama(context_length=0), "context_length"),
    "no eps": (llama(attention__layer_norm_rms_epsilon=None), "layer_norm_rms_epsilon"),
    "an eps that is no number": (llama(attention__layer_norm_rms_epsilon=float("nan")), "epsilon"),
    "an infinite RoPE base": (llama(rope__freq_base=float("inf")), "freq_base"),
    "an unknown key": (llama(attention__scale=0.5), "attention.scale"),
    "linear scaling": (llama(rope__scaling__type="linear"), "scaling"),
    "no tokenizer": (tokens(ggml__model=None), "tokenizer.ggml.model"),
    "an unknown tokenizer": (tokens(ggml__model="rwkv"), "rwkv"),
    "an unknown pre-tokenizer": (tokens(ggml__pre="mystery"), "mystery"),
    "an end beyond the vocabulary": (tokens(ggml__eos_token_id=10**6), "eos_token_id"),
    "types for fewer tokens": (tokens(ggml__token_type=[1, 1]), "token_type"),
    "merges that are none": (tokens(ggml__merges=["nonsense"]), "merges"),
    "a template that is none": (tokens(chat_template="{% for %}"), "template"),
    "a template that is a number": (tokens(chat_template=5), "chat_template"),
}


@pytest.mark.parametrize(("changes", "says"), METADATA.values(), ids=METADATA.keys())
def test_metadata_that_describes_no_runnable_model_is_refused(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    metadata, tensors = tiny_gguf_parts()
    assert says in refused(write_gguf(tmp_path / "bad.gguf", metadata | changes, tensors))


def test_a_file_with_a_vocabulary_and_no_weights_says_so(golden: Path) -> None:
    message = refused(golden / "tokenizers" / "ggml-vocab-llama-bpe.gguf")
    assert "missing" in message


TENSORS: dict[str, tuple[Callable[[dict[str, np.ndarray]], Any], str]] = {
    "a missing tensor": (lambda t: t.pop("blk.1.ffn_up.weight"), "blk.1.ffn_up.weight"),
    "a left-over tensor": (lambda t: t.update({"blk.0.attn_q.bias": np.ones(24, np.float32)}), "attn_q.bias"),
    "another shape": (
        lambda t: t.update({"output_norm.weight": np.ones(23, np.float32)}),
        "output_norm.weight",
    ),
    "turned about": (
        lambda t: t.update({"blk.0.ffn_up.weight": t["blk.0.ffn_up.weight"].T.copy()}),
        "ffn_up",
    ),
    "NaN": (lambda t: t["blk.0.ffn_gate.weight"].__setitem__((3, 3), np.nan), "blk.0.ffn_gate.weight"),
    "infinity": (lambda t: t["token_embd.weight"].__setitem__((3, 3), np.inf), "token_embd.weight"),
    "negative RoPE factors": (
        lambda t: t.update({"rope_freqs.weight": -np.ones(3, np.float32)}),
        "rope_freqs",
    ),
    "too many RoPE factors": (
        lambda t: t.update({"rope_freqs.weight": np.ones(4, np.float32)}),
        "rope_freqs",
    ),
    "no tensors at all": (lambda t: t.clear(), "missing"),
}


@pytest.mark.parametrize(("spoil", "says"), TENSORS.values(), ids=TENSORS.keys())
def test_tensors_that_do_not_fit_are_refused_by_name(spoil: Callable, says: str, tmp_path: Path) -> None:
    metadata, tensors = tiny_gguf_parts()
    spoil(tensors)
    if not tensors:
        metadata["llama.vocab_size"] = 263
    assert says in refused(write_gguf(tmp_path / "bad.gguf", metadata, tensors))


def test_a_tensor_of_a_type_that_is_not_read_is_refused_by_name(tmp_path: Path) -> None:
    """Type 16 is IQ2_XXS; the type stands 12 bytes before the end of a tensor's entry."""
    path = tiny_gguf(tmp_path / "bad.gguf")
    content = bytearray(path.read_bytes())
    name = b"output_norm.weight"
    at = content.index(name) + len(name) + 4 + 8  # one axis: its count and its length
    for type_id, says in ((16, "IQ2_XXS"), (999, "999")):
        content[at : at + 4] = struct.pack("<I", type_id)
        path.write_bytes(content)
        message = refused(path)
        assert says in message
        assert "output_norm.weight" in message


def test_options_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf")
    assert "float16" in refused(path, dtype="float16")
    assert "tpu" in refused(path, device="tpu")


def test_a_template_that_fails_refuses_the_chat_and_leaves_raw_prompts_working(tmp_path: Path) -> None:
    for template, says in (
        ("{{ raise_exception('no system prompts here') }}", "no system prompts here"),
        ("{{ messages[5].content }}", "template"),
        ("{{ 1 / 0 }}", "zero"),
        ("{% for i in range(10000000) %}{% for j in range(10000000) %}x{% endfor %}{% endfor %}", "template"),
    ):
        model = haaw.load(tiny_gguf(tmp_path / "tiny.gguf", template=template))
        with pytest.raises(BadInputError, match=says):
            model.generate("hello")
        assert model.generate("hello", form="raw", max_tokens=1).token_ids


def test_an_empty_text_without_a_start_token_is_refused_and_with_one_is_that_token(tmp_path: Path) -> None:
    """S23, S24."""
    metadata, tensors = tiny_gguf_parts()
    without = haaw.load(write_gguf(tmp_path / "without.gguf", metadata, tensors))
    for prompt in ("", []):
        with pytest.raises(BadInputError, match="no token ids"):
            without.generate(prompt)
    start = tokens(ggml__bos_token_id=257, ggml__add_bos_token=True)
    model = haaw.load(write_gguf(tmp_path / "with.gguf", metadata | start, tensors))
    assert model.generate("", max_tokens=1).prompt_ids == (257,)
    with pytest.raises(BadInputError, match="no token ids"):
        model.generate([])


def test_weights_for_more_ids_than_the_tokenizer_has_are_run_and_for_fewer_refused(tmp_path: Path) -> None:
    metadata, tensors = tiny_gguf_parts()
    names = metadata["tokenizer.ggml.tokens"]
    more = tokens(
        ggml__tokens=[*names, "one", "two"], ggml__token_type=[*metadata["tokenizer.ggml.token_type"], 1, 1]
    )
    message = refused(write_gguf(tmp_path / "bad.gguf", metadata | more, tensors))
    assert "265 tokens" in message
    assert "263" in message


def test_float64_keeps_every_value_of_the_file(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf")
    single, double = haaw.load(path).transformer, haaw.load(path, dtype="float64").transformer
    for name, array in double.named_weights().items():
        if name != "rope.frequency":
            assert array.dtype == np.float64
        np.testing.assert_array_equal(array, single.named_weights()[name])


def test_progress_tells_of_every_byte_once(tmp_path: Path) -> None:
    metadata, tensors = tiny_gguf_parts()
    calls: list[tuple[int, int]] = []
    haaw.load(
        write_gguf(tmp_path / "tiny.gguf", metadata, tensors),
        progress=lambda done, total: calls.append((done, total)),
    )
    total = 4 * sum(tensor.size for tensor in tensors.values())
    assert calls[-1] == (total, total)
    assert calls == sorted(calls)


MEASURED = """
import sys, threading, time
from pathlib import Path

def anonymous_bytes():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024

peak, done = 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous_bytes())

watcher = threading.Thread(target=watch)
watcher.start()
import haaw
model = haaw.load(sys.argv[1])
done.set()
watcher.join()
print(max(peak, anonymous_bytes()), model.transformer.weights_bytes)
"""


@pytest.mark.weights
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_needs_hardly_more_memory_than_the_weights(smollm2_file: Path) -> None:
    """At most 1.3 times the float32 weights plus 64 MB of anonymous memory, sampled every 2 ms."""
    command = [sys.executable, "-c", MEASURED, str(smollm2_file)]
    root = Path(haaw.__file__).parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100, check=True)
    peak, weights = map(int, done.stdout.split())
    print(f"peak {peak / 2**20:.0f} MiB for {weights / 2**20:.0f} MiB of weights")
    assert weights > 500e6
    assert peak <= 1.3 * weights + 64 * 2**20


@pytest.mark.parametrize(("wrong", "meant"), [("tinny", "tiny"), ("smollm2", "smollm2-135m")])
def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(wrong, meant) -> None:
    with pytest.raises(BadInputError, match=f"did you mean {meant}"):
        haaw.load(wrong)


def test_a_name_that_is_like_no_other_suggests_none() -> None:
    with pytest.raises(BadInputError, match=r"named \"qqqq\" \(`haaw models list`"):
        haaw.load("qqqq")

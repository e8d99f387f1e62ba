"""Suffixes are held against real shapes; a wrong array or a missing suffix is caught where it is passed."""

import numpy as np
import pytest

from haaw.caches.writes import kv_append
from haaw.ops.activations import swiglu
from haaw.ops.attention import attention_mix, attention_scores, merge_heads, merge_tokens
from haaw.ops.card import Card, Lengths, nothing
from haaw.ops.linear import add, linear
from haaw.ops.norms import rms_norm
from haaw.ops.op import OPS, op
from haaw.ops.rope import rope
from haaw.ops.shapes import ShapeError, bind, check_products, checked, suffix


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("name", "letters"),
    [
        ("query_THC", "THC"),
        ("x_TD", "TD"),
        ("gate_up_ZD", "ZD"),
        ("norm_D", "D"),
        ("keys", None),
        ("scale", None),
        ("x_Td", None),
        ("x_TQ", None),
        ("TD", None),
        ("x_TD_", None),
        ("x_TD_new", None),
        ("", None),
    ],
)
def test_a_suffix_is_what_follows_the_last_underscore_if_it_names_axes(name, letters):
    assert suffix(name) == letters


WRONG = {
    "too few axes": lambda: add(zeros(3), zeros(3)),
    "too many axes": lambda: rms_norm(zeros(1, 3, 4), zeros(4), eps=1e-5),
    "two lengths for one letter": lambda: swiglu(zeros(3, 4), zeros(4, 4)),
    "broadcasting in disguise": lambda: add(zeros(3, 4), zeros(1, 4)),
    "a weight with the wrong width": lambda: rms_norm(zeros(3, 4), zeros(1), eps=1e-5),
    "a wrong bias that would broadcast": lambda: linear(zeros(3, 4), zeros(5, 4), zeros(1)),
    "keys of other channels": lambda: attention_mix(zeros(4, 2, 9), zeros(2, 1, 8)),
    "a mask that would broadcast": lambda: attention_scores(zeros(2, 4, 8), zeros(2, 9, 8), zeros(1, 9), scale=1),
    "angles of other tokens": lambda: rope(zeros(3, 2, 4), zeros(1, 2), zeros(1, 2)),
    "more rotated channels than there are": lambda: rope(zeros(3, 2, 4), zeros(3, 6), zeros(3, 6)),
    "parts of other widths": lambda: merge_tokens([zeros(2, 4), zeros(3, 1)]),
    "parts with other counts of axes": lambda: merge_heads([zeros(1, 2, 3), zeros(2, 3)]),
    "a number for an array": lambda: add(zeros(3, 4), 1.0),
    "a NumPy scalar for an array": lambda: add(zeros(3, 4), np.float32(1)),
    "rows of other heads": lambda: kv_append(zeros(2, 9, 4), zeros(3, 1, 4), start=0),
    "an array where a plain argument belongs": lambda: linear(zeros(3, 4), zeros(5, 4), bias_Z=zeros(5, 1)),
}  # fmt: skip


@pytest.mark.parametrize("attempt", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_shape_is_caught(attempt):
    with pytest.raises((ShapeError, ValueError)):
        attempt()


def test_an_array_under_a_name_without_suffix_is_caught():
    with pytest.raises(ShapeError, match="eps is an array, but its name has no shape suffix"):
        rms_norm(zeros(3, 4), zeros(4), eps=np.full(1, 1e-5, np.float32))


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (np.float32(1), "returned float32"),
        (1.0, "returned float"),
        (None, "returned NoneType"),
        (zeros(2, 2, 2), "2 axes"),
        (zeros(2, 5), "T = 2, but T = 3"),
    ],
)
def test_a_wrong_result_is_caught(result, said):
    run = checked("planted", ("x_TD",), ("y_TD",), lambda x_TD: result)
    with pytest.raises(ShapeError, match=said):
        run(zeros(3, 5))


def test_filters_may_leave_fewer_candidates_but_never_more():
    names = ("ids_N",), ("ids_N",)
    assert len(checked("planted", *names, lambda ids_N: ids_N[:2])(np.arange(5))) == 2
    with pytest.raises(ShapeError, match="5 candidates went in and 6 came out"):
        checked("planted", *names, lambda ids_N: np.arange(6))(np.arange(5))


def test_products_of_axes_are_checked():
    check_products(Lengths(H=3, C=4, E=12, K=1, U=4, R=4, I=2), "planted")
    for wrong in (Lengths(H=3, C=4, E=11), Lengths(K=2, C=4, U=4), Lengths(R=4, I=3)):
        with pytest.raises(ShapeError):
            check_products(wrong, "planted")


def test_parts_are_bound_by_the_sum_of_their_first_lengths():
    lengths = Lengths()
    bind(lengths, "planted", "mixed_HTC", [zeros(1, 3, 4), zeros(2, 3, 4)])
    assert lengths == {"H": 3, "T": 3, "C": 4}
    with pytest.raises(AttributeError, match="no axis 'D'"):
        _ = lengths.D


def test_an_operation_is_defined_once_and_writes_only_what_it_names():
    card = Card("", "", "", nothing)
    known = set(OPS)

    def add(x_TD: np.ndarray) -> np.ndarray:
        return x_TD

    def planted(buffer_KPC: np.ndarray) -> None: ...

    with pytest.raises(TypeError, match="add: taken twice"):
        op(out="y_TD", card=card)(add)
    with pytest.raises(TypeError, match="no parameter 'other_KPC'"):
        op(writes="other_KPC", card=card)(planted)
    assert set(OPS) == known

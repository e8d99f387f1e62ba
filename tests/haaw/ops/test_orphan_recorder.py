"""The recorder of the tests fails where it should: each fault is planted once."""

from typing import Any

import numpy as np
import pytest
from support.orphans import LogError, OrphanRecorder

from haaw.ops.card import Card, nothing
from haaw.ops.linear import add, linear
from haaw.ops.op import Op
from haaw.ops.recorder import LISTENING, Scope, declare, emit, recording, scope


@pytest.fixture
def recorder():
    chosen = OrphanRecorder()
    with recording(chosen, stage="test"):
        yield chosen


def known(*shape: int) -> np.ndarray:
    return declare("x", np.ones(shape, np.float32))


def made(
    plain: Any, parameters: tuple[str, ...] = ("x_TD",), out: Any = ("y_TD",), writes: str | None = None
) -> Op:
    return Op("planted", plain, parameters, out, writes, Card("", "", "", nothing))


def test_windows_on_known_buffers_are_accepted(recorder):
    x_TD, weight_ZD = known(4, 6), np.ones((9, 6), np.float32)
    recorder.know_weights({"w": weight_ZD})
    y_TZ = linear(x_TD[1:3], weight_ZD[3:])
    add(y_TZ.reshape(2, 3, 2).transpose(1, 0, 2)[:, :, 0], y_TZ.T[::2])
    assert recorder.counts == {"linear": 1, "add": 1}


@pytest.mark.parametrize(
    "between",
    [
        np.copy,
        np.ascontiguousarray,
        lambda x: x * 1,
        lambda x: x.T.reshape(-1),
        lambda x: x[[0, 1]],
        np.asfortranarray,
    ],
    ids=["copy", "contiguous copy", "product", "copying reshape", "rows by list", "other order"],
)
def test_a_copy_between_operations_is_an_orphan(recorder, between):
    y_TD = add(known(3, 4).T, known(3, 4).T)
    copied = between(y_TD[:, ::2])
    with pytest.raises(LogError, match="orphan"):
        add(copied, copied)


def test_an_orphan_among_several_arrays_is_found(recorder):
    op = made(np.concatenate, ("parts_TD",))
    with pytest.raises(LogError, match="orphan"):
        recorder.run(op, ([known(2, 2), np.ones((2, 2))],), {}, Scope())


def test_an_orphan_given_by_keyword_is_found(recorder):
    with pytest.raises(LogError, match="orphan: update_TD"):
        add(known(2, 2), update_TD=np.ones((2, 2), np.float32))


def test_a_buffer_freed_and_made_anew_at_the_same_address_is_an_orphan(recorder):
    for _ in range(50):
        with pytest.raises(LogError, match="orphan"):
            add(known(2, 2), np.ones((2, 2), np.float32))


@pytest.mark.parametrize("scalar", [np.float32(2), np.int64(1)])
def test_numpy_scalars_are_refused_as_arguments_and_as_results(recorder, scalar):
    with pytest.raises(LogError, match="NumPy scalar"):
        recorder.run(made(lambda x: x), (scalar,), {}, Scope())
    with pytest.raises(LogError, match="not an array"):
        recorder.run(made(lambda x: scalar), (known(2, 2),), {}, Scope())


def test_a_changed_input_is_found(recorder):
    def changing(x_TD: np.ndarray) -> np.ndarray:
        x_TD += 1
        return x_TD * 2

    with pytest.raises(LogError, match="changed its input x_TD"):
        recorder.run(made(changing), (known(2, 2),), {}, Scope())


def test_a_changed_weight_is_found_at_the_end(recorder):
    weight_ZD = np.ones((2, 2), np.float32)
    late = OrphanRecorder(hash_weights="end")
    late.know_weights({"w": weight_ZD})
    late.run(made(lambda x: np.add(x, 1, out=x).copy()), (weight_ZD,), {}, Scope())
    with pytest.raises(LogError, match="weight was changed"):
        late.check_weights()


def test_a_workspace_used_again_is_found(recorder):
    workspace = np.empty((2, 2), np.float32)
    op = made(lambda x: np.multiply(x, 2, out=workspace))
    recorder.run(op, (known(2, 2),), {}, Scope())
    with pytest.raises(LogError, match="memory of its own"):
        recorder.run(op, (known(2, 2),), {}, Scope())


def test_a_window_on_an_input_is_no_result(recorder):
    with pytest.raises(LogError, match="memory of its own"):
        recorder.run(made(lambda x: x[1:]), (known(2, 2),), {}, Scope())


def test_writing_is_for_buffers_of_a_cache_only(recorder):
    def write(buffer_KPC: np.ndarray) -> None:
        buffer_KPC[:] = 0

    op = made(write, ("buffer_KPC",), (), "buffer_KPC")
    with pytest.raises(LogError, match="no buffer of a cache"):
        recorder.run(op, (known(2, 2, 2),), {}, Scope())
    with pytest.raises(LogError, match="orphan"):
        recorder.run(op, (np.ones((2, 2, 2)),), {}, Scope())


def test_a_forgotten_or_surplus_result_is_found(recorder):
    with pytest.raises(LogError, match="names the results"):
        recorder.run(made(lambda x: x + 1, out=("a_TD", "b_TD")), (known(2, 2),), {}, Scope())
    with pytest.raises(LogError, match="names no result"):
        recorder.run(made(lambda x: x + 1, out=()), (known(2, 2),), {}, Scope())


def test_an_event_with_an_array_is_refused(recorder):
    with pytest.raises(LogError, match="holds an array"):
        emit("delta", logits=np.ones(2))


def test_a_narrower_scope_changes_what_it_names_and_ends_with_its_block(recorder):
    listening = LISTENING.get()
    with scope(layer=3, part="mlp"):
        with scope(head=0, part=None):
            assert listening.scope == Scope(stage="test", layer=3, head=0)
            assert type(listening.scope) is Scope
        assert listening.scope == Scope(stage="test", layer=3, part="mlp")
    assert listening.scope == Scope(stage="test")


def test_a_misspelt_field_of_a_scope_is_refused(recorder):
    with pytest.raises(TypeError, match="layr"), scope(layr=3):
        raise AssertionError("the block must not be entered")
    assert LISTENING.get().scope == Scope(stage="test")

"""An offloaded cache that fails, is interrupted or forgotten: no half step, and nothing left on the disk."""

import errno
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from support.offloading import (
    IDS,
    LAYOUT,
    PROTOTYPE,
    LateMover,
    decoded,
    offloaded_files_gone,
    offloaded_for,
    step,
)
from support.tiny_models import tiny_llama

from haaw.caches import movers, offload_files
from haaw.caches.dynamic import DynamicCache
from haaw.caches.movers import ThreadMover
from haaw.caches.offloaded import OffloadedCache
from haaw.caches.protocol import CacheError
from haaw.generation.engine import advance


class Failing(ThreadMover):
    """The n-th copy fails, in the other thread."""

    def __init__(self, number: int, error: BaseException) -> None:
        super().__init__()
        self.number, self.error = number, error

    def begin(self, work, stored):
        self.number -= 1

        def fail() -> None:
            raise self.error

        super().begin(fail if self.number == 0 else work, stored)


@pytest.mark.parametrize("number", range(1, 12))
def test_a_copy_that_fails_is_told_once_and_the_step_can_be_made_again(number):
    model = tiny_llama(3, layers=4)
    cache = offloaded_for(model, mover=Failing(number, OSError(errno.EIO, "the disk is broken")))
    parts = [IDS[:9], *[[each] for each in IDS[9:14]]]
    failures, logits = 0, []
    while parts:
        before = cache.length
        try:
            logits.append(advance(model, cache, parts[0], rows="all"))
            parts.pop(0)
        except OSError:
            failures += 1
            assert cache.length == before
    assert failures == 1
    plain = decoded(model, DynamicCache(model.cache_layout, model.prototype_Z), IDS[:14], 9)
    np.testing.assert_array_equal(np.concatenate(logits), plain)


def test_an_interrupt_while_waiting_leaves_the_copy_to_be_waited_for(rng, monkeypatch):
    """Whoever handles an interrupt must not find a thread still at work on the buffer that is given away next."""
    gate, true_wait = threading.Event(), movers.wait

    class Gated(ThreadMover):
        def begin(self, work, stored):
            def gated() -> None:
                gate.wait(20)
                work()

            super().begin(gated, stored)

    cache, plain = OffloadedCache(LAYOUT, PROTOTYPE), DynamicCache(LAYOUT, PROTOTYPE)
    for each, seed in ((cache, 1), (plain, 1)):
        step(each, np.random.default_rng(seed), 6)
    cache._forget_coming()
    cache._mover = Gated()
    row = np.ones((2, 1, 2, 4), np.float32)
    cache.append(0, *row)

    def interrupted(running: Any) -> Any:
        monkeypatch.setattr(movers, "wait", true_wait)
        raise KeyboardInterrupt

    monkeypatch.setattr(movers, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.append(1, *row)
    threading.Timer(0.05, gate.set).start()
    cache.crop_to(6)
    assert gate.is_set(), "the crop waited for the copy"
    for one, other in zip(*(step(each, np.random.default_rng(2)) for each in (cache, plain)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_step_that_was_cropped_leaves_nothing_behind_in_the_working_buffers(rng):
    for layers_done in range(1, 6):
        cache, plain = OffloadedCache(LAYOUT, PROTOTYPE, mover=LateMover()), DynamicCache(LAYOUT, PROTOTYPE)
        for each in (cache, plain):
            step(each, np.random.default_rng(1), 6)
            for layer in range(layers_done):
                each.append(layer, *np.full((2, 3, 2, 4), 99, np.float32))
            each.crop_to(4)
        for one, other in zip(
            *(step(each, np.random.default_rng(2)) for each in (cache, plain)), strict=True
        ):
            np.testing.assert_array_equal(one, other)


def test_the_file_has_no_name_and_goes_with_the_cache(tmp_path, rng):
    with offloaded_files_gone():
        cache = OffloadedCache(LAYOUT, PROTOTYPE, folder=str(tmp_path))
        step(cache, rng, 100)
        twin = cache.fork()
        assert list(tmp_path.iterdir()) == [], "not even while it is in use"
        cache.release()
        step(twin, rng)
        twin.release()
    with offloaded_files_gone():
        forgotten = OffloadedCache(LAYOUT, PROTOTYPE, folder=str(tmp_path))
        step(forgotten, rng, 100)
        del forgotten


@pytest.mark.parametrize(
    "end", ["pass", "raise SystemExit(3)", "os._exit(4)", "1 / 0", "os.kill(os.getpid(), 9)"]
)
def test_a_process_leaves_nothing_behind_however_it_ends(tmp_path, end):
    program = f"""
import os, numpy as np
from haaw.caches.offloaded import OffloadedCache
from haaw.caches.protocol import CacheLayout
cache = OffloadedCache(CacheLayout(4, 2, 4, "float32"), np.zeros(1, np.float32), folder={str(tmp_path)!r})
for layer in range(4):
    cache.append(layer, np.ones((9, 2, 4), np.float32), np.ones((9, 2, 4), np.float32))
cache.commit(9)
cache.append(0, np.ones((1, 2, 4), np.float32), np.ones((1, 2, 4), np.float32))
print("ran")
import sys; sys.stdout.flush()
{end}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "ran\n", done.stderr
    assert (done.returncode == 0) == (end == "pass")
    assert list(tmp_path.iterdir()) == []


def full_disk(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("fault", ["no folder", "a file", "disk full"])
def test_a_store_that_cannot_be_made_is_one_sentence_and_changes_nothing(tmp_path, rng, monkeypatch, fault):
    folder = tmp_path / "store"
    folder.mkdir()
    cache = OffloadedCache(LAYOUT, PROTOTYPE, first_capacity=4, folder=str(folder))
    if fault != "disk full":
        folder.rmdir()
    if fault == "a file":
        folder.write_text("")
    if fault == "disk full":
        monkeypatch.setattr(offload_files, "_reserve", full_disk)
    with pytest.raises(CacheError, match=r"no file of 1,280 bytes .*store.*free some disk space or choose"):
        step(cache, rng)
    assert (cache.length, cache.capacity, cache.memory().allocated_bytes) == (0, 0, 0)


def test_a_disk_that_fills_up_later_leaves_the_rows_that_are_there(tmp_path, monkeypatch):
    cache, plain = (
        OffloadedCache(LAYOUT, PROTOTYPE, first_capacity=4, folder=str(tmp_path)),
        DynamicCache(LAYOUT, PROTOTYPE),
    )
    for each in (cache, plain):
        step(each, np.random.default_rng(1), 4)
    with monkeypatch.context() as full:
        full.setattr(offload_files, "_reserve", full_disk)
        with pytest.raises(CacheError, match="No space left"):
            step(cache, np.random.default_rng(2))
        cache.crop_to(4)
        assert (cache.length, cache.capacity) == (4, 4)
        for layer in range(5):
            for one, other in zip(cache.view(layer), plain.view(layer), strict=True):
                np.testing.assert_array_equal(one, other)
    for one, other in zip(*(step(each, np.random.default_rng(3)) for each in (cache, plain)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_room_is_reserved_on_the_disk_and_not_only_promised(tmp_path):
    """A hole in a mapped file is a signal that ends the process, once the disk is full."""
    with offload_files.in_folder(str(tmp_path)):
        array = offload_files.mapped_zeros((3, 2, 5000, 4), "float32")
    assert not array.any()
    with open(tmp_path / "file", "w+b") as file:
        offload_files._reserve(file.fileno(), 1_000_000)
        assert os.fstat(file.fileno()).st_blocks * 512 >= 1_000_000


def test_a_file_system_that_cannot_reserve_is_written_to_instead(tmp_path, monkeypatch):
    def unsupported(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    with open(tmp_path / "file", "w+b") as file:
        offload_files._reserve(file.fileno(), 3_000_000)
        assert os.fstat(file.fileno()).st_size == 3_000_000
    monkeypatch.delattr(os, "posix_fallocate")
    assert not offload_files.mapped_zeros((2, 1, 3, 4), "float64").any()

"""Files under way: read while they grow, killed, interrupted, and on a full disk."""

import errno
import io
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from haaw.errors import BadInputError
from haaw.tracing.container import Container, ContainerWriter, repair


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.haaw"


def batch(step: int) -> list[tuple[str, bytes | np.ndarray]]:
    return [
        (f"s{step:06d}/events.npy", np.full(500, step, np.int32)),
        (f"s{step:06d}/info.json", b"{}"),
    ]


def steps_in(container: Container) -> list[int]:
    """The steps whose batch is whole, after reading every one of them."""
    steps = [int(name[1:7]) for name in container.members if name.endswith("info.json")]
    for step in steps:
        np.testing.assert_array_equal(
            container.array(f"s{step:06d}/events.npy"), np.full(500, step, np.int32)
        )
    return steps


def test_a_reader_follows_a_growing_file(path: Path) -> None:
    with ContainerWriter(path) as writer:
        writer.add_bytes("manifest.json", b"{}")
        container = Container.open(path)
        assert container.refresh() == []
        for step in range(20):
            writer.add_many(batch(step))
            assert container.refresh() == [name for name, _ in batch(step)]
            assert steps_in(container) == list(range(step + 1))
            assert not container.complete
            assert container.cut_at is not None
            assert container.cut_at.left_over_bytes == 0
            assert "has not been written" in str(container.cut_at)
            assert list(container.verify()) == []
    assert container.refresh() == []
    assert container.complete
    assert container.size_bytes == path.stat().st_size


def test_an_array_read_before_the_file_grew_stays_valid(path: Path) -> None:
    with ContainerWriter(path) as writer:
        writer.add_many(batch(7))
        container = Container.open(path)
        array = container.array("s000007/events.npy")
        writer.add_array("large.npy", np.zeros(3_000_000, np.uint8))
        container.refresh()
        container.close()
        np.testing.assert_array_equal(array, np.full(500, 7, np.int32))


def test_a_reader_beside_a_writing_process_sees_only_whole_members(path: Path) -> None:
    program = f"""
        import numpy as np
        from haaw.tracing.container import ContainerWriter
        with ContainerWriter({str(path)!r}) as writer:
            writer.add_bytes("manifest.json", b"{{}}")
            for step in range(2000):
                events = np.full(500, step, np.int32)
                writer.add_many([(f"s{{step:06d}}/events.npy", events), (f"s{{step:06d}}/info.json", b"{{}}")])
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    try:
        while not path.exists() or not path.stat().st_size:
            time.sleep(0.001)
        with Container.open(path) as container:
            looks = 0
            while not container.complete:
                assert process.poll() in (None, 0)
                for name in container.refresh():
                    if name.endswith(".npy"):
                        assert container.array(name)[0] == int(name[1:7])
                looks += 1
        assert looks > 1
        assert steps_in(Container.open(path)) == list(range(2000))
    finally:
        process.kill()
        process.wait()


KILLED = """
import os, sys
import numpy as np
from haaw.tracing.container import ContainerWriter
writer = ContainerWriter(sys.argv[1])
large = np.arange(400_000, dtype=np.int32)
writer.add_bytes("manifest.json", b"{}")
step = 0
while True:
    members = [(f"s{step:06d}/events.npy", np.full(500, step, np.int32))]
    if step % 5 == 0:
        members.append((f"s{step:06d}/v0.npy", large))
    writer.add_many([*members, (f"s{step:06d}/info.json", b"{}")])
    os.write(1, step.to_bytes(4, "little"))
    step += 1
"""


@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.long)])
def test_a_killed_writer_leaves_every_finished_batch(
    kills: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    torn = 0
    for number in range(kills):
        path = tmp_path / f"{number}.haaw"
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        told = process.stdout.read(4)
        time.sleep(float(rng.uniform(0, 0.04)))
        process.send_signal(signal.SIGKILL)
        told += process.stdout.read()
        process.wait()
        process.stdout.close()
        finished = int.from_bytes(told[len(told) // 4 * 4 - 4 :][:4], "little")
        with Container.open(path) as container:
            steps = steps_in(container)
            assert steps[: finished + 1] == list(range(finished + 1))
            assert len(steps) - finished in (1, 2)  # the next one may have been written but not told
            assert not container.complete
            assert container.cut_at is not None
            torn += container.cut_at.left_over_bytes > 0
            names = list(container.members)
        report = repair(path)
        assert report.members == len(names)
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            assert archive.namelist() == names
        path.unlink()
    print(f"{torn} of {kills} files ended within a batch")


LIMITED = """
import resource, signal, sys
import numpy as np
from haaw.tracing.container import ContainerWriter
limit = int(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
writer = ContainerWriter(sys.argv[1])
step = 0
try:
    while True:
        writer.add_many([(f"s{step:06d}/events.npy", np.full(500, step, np.int32)), (f"s{step:06d}/info.json", b"{}")])
        step += 1
except OSError as error:
    print(type(error).__name__, error.errno, step)
end = sys.argv[3]
if end == "abandon":
    writer.abandon()
else:
    try:
        writer.close()
        print("closed")
    except OSError as error:
        writer.abandon()
        print("abandoned")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
@pytest.mark.parametrize("limit", [20_000, 20_480, 21_500, 21_999])
@pytest.mark.parametrize("end", ["abandon", "close"])
def test_a_full_disk_leaves_a_file_of_whole_batches(limit: int, end: str, path: Path) -> None:
    """A real limit: the system takes part of a batch, then refuses the rest."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path), str(limit), end],
        capture_output=True,
        text=True,
        check=True,
    )
    kind, number, count, *closed = done.stdout.split()
    assert (kind, int(number)) == ("OSError", errno.EFBIG)
    with Container.open(path) as container:
        assert steps_in(container) == list(range(int(count)))
        assert container.complete == (closed == ["closed"])
        assert container.complete or container.cut_at.left_over_bytes == 0
    assert path.stat().st_size <= limit


class FullDisk(io.FileIO):
    """Takes `room` bytes more, then has no space left until `room` is raised."""

    room = 0

    def write(self, data: memoryview) -> int:
        taken = min(len(data), self.room)
        if not taken and len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= taken
        return super().write(bytes(data[:taken]))


def filling_up(path: Path, room: int) -> tuple[ContainerWriter, FullDisk]:
    """A writer of one batch, on a disk that has `room` bytes left."""
    writer = ContainerWriter(path)
    writer.add_many(batch(0))
    assert writer._file is not None
    writer._file.close()
    writer._file = disk = FullDisk(path, "ab")
    disk.room = room
    return writer, disk


@pytest.mark.parametrize("room", [0, 20, 300, 2200, 2300])
def test_a_writer_goes_on_once_there_is_space_again(room: int, path: Path) -> None:
    writer, disk = filling_up(path, room)
    with pytest.raises(OSError, match="No space left"):
        writer.add_many(batch(1))
    disk.room = 10_000
    writer.add_many(batch(1))  # the same names: the failed batch does not count
    writer.add_many(batch(2))
    writer.close()
    container = Container.open(path)
    assert steps_in(container) == [0, 1, 2]
    assert container.complete
    assert zipfile.ZipFile(path).testzip() is None


@pytest.mark.parametrize("block", ["with", "abandon"])
def test_a_disk_that_fills_up_while_closing_leaves_the_members(block: str, path: Path) -> None:
    writer, _ = filling_up(path, 100)
    if block == "with":
        with pytest.raises(OSError, match="No space left"), writer:
            pass
    else:
        with pytest.raises(OSError, match="No space left"):
            writer.close()
        writer.abandon()
    container = Container.open(path)
    assert steps_in(container) == [0]
    assert container.cut_at is not None
    assert container.cut_at.left_over_bytes == 0


def test_a_with_block_abandons_the_file_after_a_failed_write(path: Path) -> None:
    writer, _ = filling_up(path, 1000)
    with pytest.raises(OSError, match="No space left"), writer:
        writer.add_many(batch(1))
    container = Container.open(path)
    assert steps_in(container) == [0]
    assert container.cut_at is not None
    assert container.cut_at.left_over_bytes == 0


def fails_elsewhere() -> None:
    raise RuntimeError("elsewhere")


def test_a_with_block_that_fails_for_another_reason_still_closes_the_file(path: Path) -> None:
    writer = ContainerWriter(path)
    writer.add_many(batch(0))
    with pytest.raises(RuntimeError, match="elsewhere"), writer:
        fails_elsewhere()
    assert Container.open(path).complete


def interrupted_at_line(
    number: int, writer: ContainerWriter, members: list[tuple[str, bytes | np.ndarray]]
) -> bool:
    """Add members, with a Ctrl-C before line `number` of all that runs; whether it came to that."""
    left = number

    def trace(frame: object, event: str, argument: object) -> object:
        nonlocal left
        left -= event == "line"
        if not left:
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        writer.add_many(members)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def test_an_interruption_at_any_line_loses_at_most_its_batch(tmp_path: Path) -> None:
    """Ctrl-C may come between any two lines: before the write, after it, or while it is being counted."""
    for number in itertools.count(1):
        path = tmp_path / f"{number}.haaw"
        writer = ContainerWriter(path)
        writer.add_many(batch(0))
        interrupted = interrupted_at_line(number, writer, batch(1))
        if writer.count == 2:
            assert interrupted
            writer.add_many(batch(1))
        with pytest.raises(BadInputError, match="already"):  # what was counted is known by its names, too
            writer.add_many(batch(1))
        writer.add_many(batch(2))
        writer.close()
        with Container.open(path) as container:
            assert steps_in(container) == [0, 1, 2]
            assert container.complete
        if not interrupted:
            break
    assert number > 40


def test_a_file_that_became_shorter_while_it_was_open_is_an_error(path: Path) -> None:
    with ContainerWriter(path) as writer:
        writer.add_many(batch(0))
    container = Container.open(path)
    os.truncate(path, 100)
    with pytest.raises(BadInputError, match="was cut"):
        container.refresh()


def test_the_memory_of_a_writer_grows_by_little_more_than_its_directory(path: Path) -> None:
    with ContainerWriter(path) as writer:
        tracemalloc.start()
        for step in range(10_000):
            writer.add_many([(f"s{step:06d}/{what}", b"") for what in ("events", "info")])
        grown_bytes = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    print(f"{grown_bytes / 20_000:.0f} bytes a member")
    assert grown_bytes < 20_000 * 300

"""Repairing cut files: afterwards every public tool opens them, and nothing whole is lost."""

import errno
import io
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest

from haaw.errors import BadInputError
from haaw.tracing import container_repair
from haaw.tracing.container import Container, ContainerWriter, TraceDamagedError, repair


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.haaw"


@pytest.fixture
def whole(tmp_path: Path) -> bytes:
    with ContainerWriter(tmp_path / "whole.haaw") as writer:
        writer.add_bytes("manifest.json", b"{}")
        for step in range(3):
            writer.add_many([(f"s{step}/events.npy", np.arange(9) + step), (f"s{step}/info.json", b"{}")])
    return (tmp_path / "whole.haaw").read_bytes()


def opens_everywhere(path: Path, names: list[str]) -> None:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == names
    with np.load(path) as arrays:
        for name in names:
            if name.endswith(".npy"):
                np.testing.assert_array_equal(arrays[name.removesuffix(".npy")], np.arange(9) + int(name[1]))
    with Container.open(path) as container:
        assert container.complete
        assert list(container.verify()) == []
        assert all(member.offset % 64 == 0 for member in container.members.values())
    if unzip := shutil.which("unzip"):
        assert subprocess.run([unzip, "-tq", str(path)], capture_output=True).returncode == 0


@pytest.mark.parametrize("place", ["in place", "another file"])
def test_a_file_cut_anywhere_is_repaired(place: str, whole: bytes, path: Path, tmp_path: Path) -> None:
    path.write_bytes(whole)
    with Container.open(path) as container:
        ends = {name: member.offset + member.size for name, member in container.members.items()}
    for length in [*range(ends["manifest.json"], len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:length])
        out = None if place == "in place" else tmp_path / f"{length}.haaw"
        report = repair(path, out)
        names = [name for name, end in ends.items() if end <= length]
        opens_everywhere(report.path, names)
        assert report.path == (out or path)
        assert (report.members, report.changed) == (len(names), True)
        assert f"{len(names)} members" in str(report)
        if out is not None:
            assert path.read_bytes() == whole[:length]
        if length < ends["s2/info.json"]:
            assert report.dropped_bytes == length - max(ends[name] for name in names)


def test_a_repaired_file_is_the_same_as_a_closed_one(whole: bytes, path: Path) -> None:
    path.write_bytes(whole[:-1])
    repair(path)
    assert path.read_bytes() == whole


def test_a_whole_file_is_left_as_it_is(whole: bytes, path: Path, tmp_path: Path) -> None:
    path.write_bytes(whole)
    path.chmod(0o444)
    report = repair(path)
    assert not report.changed
    assert "nothing had to be done" in str(report)
    assert path.read_bytes() == whole
    report = repair(path, tmp_path / "copy.haaw")
    assert (report.members, report.dropped_bytes, report.lost) == (7, 0, ())
    assert (tmp_path / "copy.haaw").read_bytes() == whole


@pytest.mark.parametrize("where", ["header", "content"])
@pytest.mark.parametrize("cut", [True, False])
def test_damage_in_the_middle_is_repaired_into_another_file_only(
    where: str, cut: bool, whole: bytes, path: Path, tmp_path: Path
) -> None:
    path.write_bytes(whole)
    with Container.open(path) as container:
        names = list(container.members)
        member = container.members["s1/events.npy"]
    content = bytearray(whole[:-30] if cut else whole)
    content[member.offset - 60 if where == "header" else member.offset + 150] ^= 4
    path.write_bytes(content)
    with pytest.raises(TraceDamagedError, match=r"s0/info\.json|s1/events\.npy") as caught:
        repair(path)
    assert "another file" in str(caught.value)
    assert path.read_bytes() == content  # untouched
    report = repair(path, tmp_path / "out.haaw")
    opens_everywhere(tmp_path / "out.haaw", [name for name in names if name != "s1/events.npy"])
    assert len(report.lost) == 1 + (cut and where == "content")
    assert report.dropped_bytes > 0


def test_a_file_that_is_being_written_is_refused(path: Path) -> None:
    with ContainerWriter(path) as writer:
        writer.add_bytes("a", b"1")
        with pytest.raises(BadInputError, match="being written just now"):
            repair(path)
        writer.add_bytes("b", b"2")
    assert list(Container.open(path).members) == ["a", "b"]
    assert Container.open(path).complete


def test_what_is_no_trace_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"my thesis")
    with pytest.raises(BadInputError, match=r"no \.haaw file"):
        repair(path)
    assert path.read_bytes() == b"my thesis"


def test_an_existing_file_is_not_overwritten(whole: bytes, path: Path, tmp_path: Path) -> None:
    path.write_bytes(whole[:-1])
    for out in (path, tmp_path / "whole.haaw"):
        with pytest.raises(BadInputError, match="exists already"):
            repair(path, out)
    assert path.read_bytes() == whole[:-1]


def test_a_disk_that_fills_up_during_a_repair_loses_nothing(
    whole: bytes, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(whole[:-40])
    cut = Container.open(path).cut_at
    assert cut is not None

    def fail(file: io.FileIO, data: bytes) -> None:
        file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(container_repair, "write_all", fail)
        patch.setattr("haaw.tracing.container_writer.write_all", fail)
        for out in (None, tmp_path / "out.haaw"):
            with pytest.raises(OSError, match="No space left"):
                repair(path, out)
    assert not (tmp_path / "out.haaw").exists()
    assert path.read_bytes() == whole[: cut.offset]
    repair(path)
    assert path.read_bytes() == whole

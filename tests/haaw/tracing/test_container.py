"""The `.haaw` file, written and read back; `zipfile`, `numpy.load` and `unzip` are the judges."""

import io
import mmap
import shutil
import subprocess
import zipfile
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from haaw.errors import BadInputError
from haaw.tracing import container_format, container_scan, container_writer
from haaw.tracing.container import Container, ContainerWriter, Member

EVENT = np.dtype([("kind", "u1"), ("start_ns", "<i8"), ("hash", "u1", (16,)), ("took", "<f4")])
PADDED = np.dtype([("flag", "u1"), ("value", "<f8")], align=True)
NESTED = np.dtype([("place", [("layer", "<i2"), ("head", "<i2")]), ("values", "<f4", (2, 3))])
ARRAYS = {
    "float32": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "float64 with NaN": np.array([np.nan, -0.0, np.inf, 5e-324]),
    "float16": np.linspace(-1, 1, 7, dtype=np.float16),
    "big-endian": np.arange(5, dtype=">i4"),
    "bool": np.array([[True, False], [False, True]]),
    "complex": np.array([1 + 2j, -3j], np.complex64),
    "0-d": np.array(3.5),
    "empty": np.zeros((0, 3), np.float32),
    "empty inside": np.zeros((2, 0), np.int64),
    "bytes": np.array([b"abc", b"de"]),
    "text": np.array(["Ω", "naïve"]),
    "time": np.array(["2024-01-01", "NaT"], "M8[D]"),
    "structured": np.arange(3 * EVENT.itemsize, dtype=np.uint8).view(EVENT),
    "structured, empty": np.zeros(0, EVENT),
    "structured, padded": np.zeros(4, PADDED),
    "structured, nested": np.ones(2, NESTED),
    "read-only": np.frombuffer(b"0123456789abcdef", np.uint32),
    "window": np.arange(100.0)[10:20],
    "one row of F order": np.asfortranarray(np.ones((1, 5))),
    "many axes": np.arange(2**10, dtype=np.int16).reshape((2,) * 10),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.haaw"


def write_arrays(path: Path) -> None:
    with ContainerWriter(path) as writer:
        writer.add_bytes("manifest.json", b'{"schema": 1}')
        for number, array in enumerate(ARRAYS.values()):
            writer.add_array(f"s{number:06d}/value.npy", array)
        writer.add_bytes("empty.json", b"")


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_array_comes_back_bit_for_bit_as_a_window_on_the_file(kind: str, path: Path) -> None:
    array = ARRAYS[kind]
    with ContainerWriter(path) as writer:
        writer.add_bytes("a", b"x" * 13)
        writer.add_array("deep/er/value.npy", array)
    with Container.open(path) as container:
        found = container.array("deep/er/value.npy")
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
        assert not found.flags.writeable
        assert isinstance(found.base.base.obj, mmap.mmap)  # not a copy
        assert found.ctypes.data % 64 == 0 or found.size == 0
    np.testing.assert_array_equal(np.load(path)["deep/er/value"], array)


@pytest.mark.parametrize("kind", ARRAYS)
def test_npy_members_are_what_numpy_itself_reads(kind: str, path: Path) -> None:
    with ContainerWriter(path) as writer:
        writer.add_array("value.npy", ARRAYS[kind])
    with zipfile.ZipFile(path) as archive:
        found = np.lib.format.read_array(io.BytesIO(archive.read("value.npy")), allow_pickle=False)
    assert found.dtype == ARRAYS[kind].dtype
    np.testing.assert_array_equal(found, ARRAYS[kind])


def test_arrays_that_numpy_wrote_are_read_in_both_orders(path: Path) -> None:
    array = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    saved = io.BytesIO()
    np.lib.format.write_array(saved, array, version=(1, 0))
    with ContainerWriter(path) as writer:
        writer.add_bytes("value.npy", saved.getvalue())
    found = Container.open(path).array("value.npy")
    np.testing.assert_array_equal(found, array)
    assert found.flags.f_contiguous


def test_a_closed_file_is_a_zip_for_every_other_program(path: Path) -> None:
    write_arrays(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        infos = archive.infolist()
        assert all(info.compress_type == zipfile.ZIP_STORED for info in infos)
        assert {info.date_time for info in infos} == {(1980, 1, 1, 0, 0, 0)}
    if unzip := shutil.which("unzip"):
        tested = subprocess.run([unzip, "-tq", str(path)], capture_output=True, text=True)
        assert tested.returncode == 0, tested.stdout


def test_every_member_is_aligned_and_agrees_with_the_central_directory(path: Path) -> None:
    write_arrays(path)
    with Container.open(path) as container, zipfile.ZipFile(path) as archive:
        assert container.complete
        assert container.cut_at is None
        assert list(container.members) == archive.namelist()
        for info in archive.infolist():
            member = container.members[info.filename]
            assert member == Member(member.offset, info.file_size, info.CRC)
            assert member.offset % 64 == 0
            assert container.read(info.filename) == archive.read(info)


def test_equal_content_gives_equal_files(tmp_path: Path) -> None:
    for name in ("a.haaw", "b.haaw"):
        write_arrays(tmp_path / name)
    assert (tmp_path / "a.haaw").read_bytes() == (tmp_path / "b.haaw").read_bytes()


def test_one_call_for_each_member_writes_the_same_as_a_batch(tmp_path: Path) -> None:
    members = [("a", b"one"), ("b.npy", np.arange(7)), ("c", bytearray(b"three")), ("d", memoryview(b"four"))]
    with ContainerWriter(tmp_path / "batch.haaw") as writer:
        writer.add_many(members)
    with ContainerWriter(tmp_path / "single.haaw") as writer:
        for member in members:
            writer.add_many([member])
    assert (tmp_path / "batch.haaw").read_bytes() == (tmp_path / "single.haaw").read_bytes()


def test_a_file_without_members_opens(path: Path) -> None:
    with ContainerWriter(path):
        pass
    assert Container.open(path).complete
    assert zipfile.ZipFile(path).namelist() == []


def test_large_members_are_written_without_a_copy_and_come_back(path: Path) -> None:
    large = np.random.default_rng(1).integers(0, 256, 3_000_000, np.uint8)
    with ContainerWriter(path) as writer:
        writer.add_many(
            [("a.json", b"{}"), ("large.npy", large), ("z.json", b"[]"), ("more.npy", large[:1_500_000])]
        )
        assert writer.count == 4
        assert writer.size_bytes == path.stat().st_size
    container = Container.open(path)
    np.testing.assert_array_equal(container.array("large.npy"), large)
    np.testing.assert_array_equal(container.array("more.npy"), large[:1_500_000])
    assert zipfile.ZipFile(path).testzip() is None


def test_a_small_batch_is_one_write(path: Path) -> None:
    writer, writes = ContainerWriter(path), []

    class Counting(io.FileIO):
        def write(self, data: memoryview) -> int:
            writes.append(len(data))
            return super().write(data)

    writer._file.close()
    writer._file = Counting(path, "ab")
    writer.add_many([(f"m{number}.npy", np.zeros(2000)) for number in range(6)])
    assert len(writes) == 1
    writer.close()
    assert len(writes) == 2


def test_more_members_than_16_bits_count_make_a_zip64_file(path: Path) -> None:
    names = [f"s{number:06d}" for number in range(65_535)]
    with ContainerWriter(path) as writer:
        writer.add_many((name, b"") for name in names)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == names
    with Container.open(path) as container:
        assert container.complete
        assert len(container.members) == 65_535


@pytest.mark.parametrize("limit", [100, 1000])
def test_sizes_and_offsets_over_the_limit_take_zip64_fields(
    limit: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_format, "LIMIT_32", limit)
    write_arrays(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.read("manifest.json") == b'{"schema": 1}'
    with np.load(path) as arrays:
        for number, array in enumerate(ARRAYS.values()):
            np.testing.assert_array_equal(arrays[f"s{number:06d}/value"], array)
    with Container.open(path) as container:
        assert container.complete
        assert list(container.verify()) == []
        assert all(member.offset % 64 == 0 for member in container.members.values())
    if unzip := shutil.which("unzip"):
        assert subprocess.run([unzip, "-tq", str(path)], capture_output=True).returncode == 0


def test_65_535_members_need_a_zip64_end_and_one_fewer_does_not() -> None:
    """0xFFFF in the 16-bit field means: look into the ZIP64 record (APPNOTE 4.4.1.4)."""
    assert container_format.end_records(65_534, 0, 0)[:4] == b"PK\x05\x06"
    assert container_format.end_records(65_535, 0, 0)[:4] == b"PK\x06\x06"


def test_headers_over_4_gb_hold_the_whole_numbers() -> None:
    size, offset = 5 * 2**30, 7 * 2**30
    header = container_format.local_header(offset, b"big.npy", 1, size)
    assert header[18:26] == b"\xff" * 8
    assert (
        int.from_bytes(header[41:49], "little") == size
    )  # behind 30 bytes, the name, and the field's 4 bytes
    entry = container_format.central_record(offset, b"big.npy", 1, size)
    decoded = zipfile.ZipInfo("big.npy")
    decoded.file_size = decoded.compress_size = decoded.header_offset = 0xFFFF_FFFF
    decoded.extra = entry[46 + 7 :]
    decoded._decodeExtra()  # the standard library's own reader of the field
    assert (decoded.file_size, decoded.compress_size, decoded.header_offset) == (size, size, offset)


class TestRefusals:
    @pytest.mark.parametrize(
        "name",
        [
            "",
            "/a",
            "../a",
            "a/../b",
            "a/..",
            "./a",
            "a//b",
            "a/",
            "a\\b",
            "c:a",
            "a\0",
            "a\n",
            "\x1b[2J",
            "\ud800",
            "x" * 513,
        ],
    )
    def test_names_that_could_leave_the_folder_are_refused(self, name: str, path: Path) -> None:
        with ContainerWriter(path) as writer:
            with pytest.raises(BadInputError, match="member name"):
                writer.add_bytes(name, b"")
            writer.add_bytes("ok", b"")
        assert list(Container.open(path).members) == ["ok"]

    @pytest.mark.parametrize("name", ["..a", "a..b/.c", "...", "v12.-1-soft max.npy", "日本/é", "x" * 512])
    def test_harmless_names_are_allowed(self, name: str, path: Path) -> None:
        with ContainerWriter(path) as writer:
            writer.add_bytes(name, b"1")
        assert list(Container.open(path).members) == [name] == zipfile.ZipFile(path).namelist()

    def test_a_second_member_of_the_same_name_is_refused_and_its_whole_batch_with_it(
        self, path: Path
    ) -> None:
        with ContainerWriter(path) as writer:
            writer.add_bytes("a", b"1")
            for batch in ([("b", b"2"), ("a", b"3")], [("b", b"2"), ("b", b"3")]):
                with pytest.raises(BadInputError, match="already"):
                    writer.add_many(batch)
            writer.add_bytes("b", b"4")
        container = Container.open(path)
        assert {name: bytes(container.read(name)) for name in container.members} == {"a": b"1", "b": b"4"}

    @pytest.mark.parametrize(
        "array",
        [
            np.array([{}, 1], object),
            np.zeros(2, [("a", "O")]),
            np.zeros((3, 4)).T,
            np.zeros(8)[::2],
            np.zeros(3, ml_dtypes.bfloat16),
            np.array(["a"], np.dtypes.StringDType()),
        ],
    )
    def test_arrays_that_would_not_come_back_the_same_are_refused(
        self, array: np.ndarray, path: Path
    ) -> None:
        with ContainerWriter(path) as writer, pytest.raises(BadInputError):
            writer.add_array("a.npy", array)

    @pytest.mark.parametrize("content", ["text", 5, None, [1], memoryview(b"abcdef")[::2]])
    def test_other_content_is_refused(self, content: object, path: Path) -> None:
        with ContainerWriter(path) as writer, pytest.raises(BadInputError, match="give bytes"):
            writer.add_many([("a", content)])

    def test_an_existing_trace_is_replaced_only_if_asked(self, path: Path) -> None:
        write_arrays(path)
        kept = Container.open(path)
        before = kept.read("manifest.json")
        with pytest.raises(BadInputError, match="exists already"):
            ContainerWriter(path)
        with ContainerWriter(path, exists="replace") as writer:
            writer.add_bytes("new", bytes(path.stat().st_size + 100_000))
        assert list(Container.open(path).members) == ["new"]
        assert bytes(before) == b'{"schema": 1}'  # whoever has the old one open keeps it
        with pytest.raises(BadInputError, match="another file now"):
            kept.refresh()

    @pytest.mark.parametrize("exists", ["refuse", "replace"])
    @pytest.mark.parametrize("content", [b"my thesis", b"PK\x03\x04" + bytes(200)])
    def test_any_other_file_is_left_alone(self, exists: str, content: bytes, path: Path) -> None:
        path.write_bytes(content)
        with pytest.raises(BadInputError, match=r"no \.haaw file"):
            ContainerWriter(path, exists=exists)
        assert path.read_bytes() == content

    def test_an_empty_file_may_be_replaced(self, path: Path) -> None:
        path.touch()
        with pytest.raises(BadInputError):
            ContainerWriter(path)
        ContainerWriter(path, exists="replace").close()

    def test_a_trace_that_is_being_written_is_not_replaced(self, path: Path) -> None:
        with ContainerWriter(path) as writer:
            writer.add_bytes("a", b"")
            with pytest.raises(BadInputError, match="being written just now"):
                ContainerWriter(path, exists="replace")
        ContainerWriter(path, exists="replace").close()

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("no/folder/x.haaw", "folder .* does not exist"),
            ("file/x.haaw", "does not exist"),
            ("x" * 300, "cannot be created"),
            ("a\0b", "NUL"),
            ("folder", "no .haaw file"),
        ],
    )
    def test_places_where_nothing_can_be_written_are_told_apart(
        self, name: str, message: str, tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        (tmp_path / "folder").mkdir()
        for exists in ("refuse", "replace"):
            with pytest.raises(BadInputError, match=message):
                ContainerWriter(tmp_path / name, exists=exists)

    @pytest.mark.skipif(
        not Path("/sys/kernel").is_dir(), reason="needs a folder that even root cannot write to"
    )
    def test_a_folder_that_is_not_writable_is_named(self) -> None:
        with pytest.raises(BadInputError, match="cannot be created: "):
            ContainerWriter("/sys/run.haaw")

    def test_a_closed_writer_and_a_closed_reader_say_so(self, path: Path) -> None:
        writer = ContainerWriter(path)
        writer.add_bytes("a", b"1")
        writer.close()
        writer.close()
        writer.abandon()
        with pytest.raises(BadInputError, match="closed"):
            writer.add_bytes("b", b"")
        container = Container.open(path)
        container.close()
        container.close()
        with pytest.raises(BadInputError, match="closed"):
            container.read("a")

    def test_a_member_that_is_not_there_is_named(self, path: Path) -> None:
        write_arrays(path)
        container = Container.open(path)
        with pytest.raises(BadInputError, match="no member 'nothing'"):
            container.read("nothing")
        assert "nothing" not in container.members
        with pytest.raises(KeyError):
            container.members["nothing"]


def test_arrays_outlive_the_container(path: Path) -> None:
    write_arrays(path)
    with Container.open(path) as container:
        array = container.array("s000000/value.npy")
    del container
    np.testing.assert_array_equal(array, ARRAYS["float32"])


def test_checksums_are_looked_at_once_for_each_member(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_arrays(path)
    container = Container.open(path)
    sizes: list[int] = []
    real = zlib.crc32
    monkeypatch.setattr(zlib, "crc32", lambda data, start=0: sizes.append(len(data)) or real(data, start))
    for _ in range(3):
        container.read("s000000/value.npy")
    assert sizes == [container.members["s000000/value.npy"].size]


def step_members(step: int) -> list[tuple[str, bytes | np.ndarray]]:
    """About what a decode step of a small model writes: 6 members of together 100 KB."""
    name = f"s{step:06d}/"
    return [
        (name + "events.npy", np.zeros(700 + step % 9, EVENT)),
        (name + "links.npy", np.zeros(1200 + step % 7, "V17")),
        (name + "outputs.npy", np.zeros(720 + step % 5, EVENT)),
        (name + "kept.npy", np.zeros(60, "u8")),
        (name + "arena.npy", np.zeros(37_000 + step % 64, np.uint8)),
        (name + "info.json", b" " * 3000),
    ]


def test_a_step_is_handed_to_the_system_in_one_piece(path: Path, monkeypatch) -> None:
    """So that a step costs one call. What it takes is measured by `python -m benchmarks tracing`."""
    written: list[int] = []
    whole = container_writer.write_all

    def counted(file: io.FileIO, data: bytes) -> None:
        written.append(len(data))
        whole(file, data)

    monkeypatch.setattr(container_writer, "write_all", counted)
    with ContainerWriter(path) as writer:
        for step in range(30):
            writer.add_many(step_members(step))
        assert len(written) == 30
        assert sum(written) == writer.size_bytes


def test_each_of_many_members_is_looked_at_once(path: Path, monkeypatch) -> None:
    with ContainerWriter(path) as writer:
        for step in range(834):
            writer.add_many(
                [(f"s{step:06d}/{what}.npy", b"12345678") for what in ("e", "l", "o", "k", "a", "i")]
            )
    looked_at: list[int] = []
    look = container_scan.member_at

    def counted(content: object, offset: int, size_bytes: int) -> object:
        looked_at.append(offset)
        return look(content, offset, size_bytes)

    monkeypatch.setattr(container_scan, "member_at", counted)
    container = Container.open(path)
    assert len(container.members) == 5004
    assert len(looked_at) == len(set(looked_at)) <= 5004 + 1  # and the directory behind them

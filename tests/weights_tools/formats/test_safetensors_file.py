"""Reading safetensors agrees with the library; lying headers and indexes are refused before any reading.

FAULTS: S62 (shards), S63 (shape against range), S64 (header length), S65 (bf16), S70 (pickle).
"""

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from weights_tools.formats import FormatError, TensorFile, open_safetensors, open_sharded

INDEX = "model.safetensors.index.json"


def build(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_every_float_type_reads_as_the_library_reads_it(
    dtype: type, tmp_path: Path, random_floats: Callable
) -> None:
    tensors = {
        "w": random_floats((300, 512)).astype(dtype),
        "row": random_floats((70_000,), 1).astype(dtype),
        "cube": random_floats((2, 3, 4), 2).astype(dtype),
        "scalar": np.array(1.5, dtype),
        "empty": np.empty((0, 3), dtype),
    }
    save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "pt"})
    expected = load_file(tmp_path / "m.safetensors")
    with open_safetensors(tmp_path / "m.safetensors") as opened:
        file: TensorFile = opened
        assert dict(file.metadata) == {"format": "pt"}
        assert set(file.tensors) == set(tensors)
        for name, values in expected.items():
            assert file.tensors[name].shape == values.shape
            assert file.tensors[name].size_bytes == values.nbytes
            np.testing.assert_array_equal(opened.read(name), values.astype(np.float32), strict=True)


def test_bf16_words_widen_by_a_shift_even_where_numpy_does_not_know_the_type(
    tmp_path: Path, run_python: Callable[[str], str]
) -> None:
    """S65: bf16 failed when NumPy lacked the type. 0x3FC0 << 16 is 1.5."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(build({"w": entry("BF16", [2], 0, 4)}, b"\xc0\x3f\x00\xc0"))
    code = f"from weights_tools.formats import *; print(open_safetensors({str(path)!r}).read('w'))"
    assert run_python(code) == "[ 1.5 -2. ]\n"


@pytest.mark.parametrize("rows", [slice(None), slice(0, 1), slice(100, 301), slice(299, None), slice(7, 7)])
def test_windows_of_rows_into_any_strides(rows: slice, tmp_path: Path, random_floats: Callable) -> None:
    values = random_floats((301, 512))
    save_file({"w": values}, tmp_path / "m.safetensors")
    with open_safetensors(tmp_path / "m.safetensors") as file:
        out = np.full(values[rows].shape[::-1], np.nan, np.float32).T
        file.read_into("w", out, rows)
        np.testing.assert_array_equal(out, values[rows])


def test_reading_needs_little_memory_beyond_the_target(tmp_path: Path, random_floats: Callable) -> None:
    values = random_floats((2048, 512)).astype(ml_dtypes.bfloat16)
    save_file({"w": values}, tmp_path / "m.safetensors")
    out = np.empty(values.shape, np.float32)  # 4 MB
    with open_safetensors(tmp_path / "m.safetensors") as file:
        file.read_into("w", out)
        tracemalloc.start()
        file.read_into("w", out)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak_bytes < 1e6


@pytest.mark.parametrize("dtype", ["I64", "BOOL", "U8", "F8_E4M3"])
def test_types_that_are_no_weights_are_listed_but_refused_by_name_when_read(
    dtype: str, tmp_path: Path
) -> None:
    size = 8 if dtype == "I64" else 1
    path = tmp_path / "m.safetensors"
    path.write_bytes(build({"ids": entry(dtype, [2], 0, 2 * size)}, bytes(2 * size)))
    with open_safetensors(path) as file:
        assert file.tensors["ids"].type_name == dtype
        with pytest.raises(FormatError, match=f"'ids' holds {dtype} values"):
            file.read("ids")


def test_a_closed_file_and_an_unknown_name_are_refused(tmp_path: Path) -> None:
    save_file({"w": np.zeros(2, np.float32)}, tmp_path / "m.safetensors")
    file = open_safetensors(tmp_path / "m.safetensors")
    with pytest.raises(FormatError, match="no tensor named 'v'"):
        file.read("v")
    file.close()
    with pytest.raises(FormatError, match="closed"):
        file.read("w")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "an empty file"),
        (b"PK\x03\x04" + bytes(60), "ZIP"),
        (b"\x80\x02}q\x00.", "pickle"),
        (b"GGUF" + bytes(60), "a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"<html></html>" + bytes(9), "begins with"),
        (b"<html><body>404</body></html>", "web page"),
        (b"abc", "too few"),
        (struct.pack("<Q", 2**62) + b"{}", "above the cap of 100000000"),
        (struct.pack("<Q", 100_000_001) + b"{}", "above the cap of 100000000"),
        (struct.pack("<Q", 1000) + b"{}", "only 10"),
        (struct.pack("<Q", 2) + b"[]", "begins with b'['"),
    ],
)
def test_each_way_not_to_be_a_safetensors_file_has_its_own_sentence(
    content: bytes, says: str, refused: Callable
) -> None:
    """S64: a length beyond the cap and a file of another type were both called too large."""
    if content.startswith(b"<html></html>"):
        says = "above the cap"  # zeros make it no text: its first 8 bytes are then read as a length
    assert says in refused(open_safetensors, content)


@pytest.mark.parametrize(
    ("header", "data", "says"),
    [
        ({"w": entry("F32", [1000, 1000], 0, 4)}, bytes(4), "takes another number"),  # S63
        ({"w": entry("F32", [1], 4, 0)}, b"", "takes another number"),
        ({"w": entry("F32", [2**62, 4], 0, 0)}, b"", "takes another number"),  # wraps to 0 in 64 bits
        ({"w": entry("F32", [0, 2**60], 0, 0)}, b"", "takes another number"),
        ({"w": entry("F32", [1], 0, 4)}, b"", "incomplete"),
        ({"w": entry("F32", [1], 0, 4)}, bytes(8), "the tensors end at byte"),
        ({"w": entry("F32", [1], 4, 8)}, bytes(8), "leaves a gap"),
        ({"v": entry("F32", [2], 0, 8), "w": entry("F32", [2], 4, 12)}, bytes(12), "overlaps"),
        ({"v": entry("F32", [1], 0, 4), "w": entry("F32", [1], 0, 4)}, bytes(4), "overlaps"),
        ({"w": entry("F99", [1], 0, 4)}, bytes(4), "unknown type 'F99'"),
        ({"w": entry("F32", [-1], 0, 4)}, bytes(4), "no proper shape"),
        ({"w": entry("F32", [1.0], 0, 4)}, bytes(4), "no proper shape"),
        ({"w": entry("F32", [True], 0, 4)}, bytes(4), "no proper shape"),
        ({"w": entry("F32", [1] * 33, 0, 4)}, bytes(4), "no proper shape"),
        ({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, bytes(4), "no proper data_offsets"),
        ({"w": {"dtype": "F32", "shape": [1]}}, bytes(4), "does not have just"),
        ({"w": 3}, b"", "does not have just"),
        ({"__metadata__": {"a": 1}}, b"", "__metadata__"),
        ({"__metadata__": None}, b"", "__metadata__"),
        (b'{"w":' + b"[" * 100_000, b"", "nested too deeply"),
        (b'{"w":1,"w":2}', b"", "'w' occurs twice"),
        (b'{"w', b"", "not valid JSON"),
        (b'{"\xff":1}', b"", "not valid JSON"),
        (b'{"w":' + b"9" * 10_000 + b"}", b"", "not valid JSON"),
    ],
)
def test_headers_that_lie_are_refused(header: Any, data: bytes, says: str, refused: Callable) -> None:
    assert says in refused(open_safetensors, build(header, data))


@pytest.fixture
def shards(tmp_path: Path, random_floats: Callable) -> Path:
    save_file({"a": random_floats((2, 3)), "b": random_floats((4,), 1)}, tmp_path / "one.safetensors")
    save_file({"c": random_floats((5, 2), 2)}, tmp_path / "two.safetensors")
    write_index(tmp_path, {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"})
    return tmp_path


def write_index(folder: Path, weight_map: Any) -> None:
    index = {"metadata": {"total_size": 80}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index))


def test_a_folder_of_shards_reads_as_one_file(shards: Path, random_floats: Callable) -> None:
    with open_sharded(shards) as file:
        assert dict(file.metadata) == {"total_size": 80}
        assert set(file.tensors) == {"a", "b", "c"}
        np.testing.assert_array_equal(file.read("b"), random_floats((4,), 1))
        np.testing.assert_array_equal(file.read("c"), random_floats((5, 2), 2))


def test_a_folder_without_an_index_reads_its_single_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="neither"):
        open_sharded(tmp_path)
    save_file({"w": np.ones(2, np.float32)}, tmp_path / "model.safetensors")
    with open_sharded(tmp_path) as file:
        assert file.read("w").tolist() == [1, 1]


def test_missing_shards_are_listed_before_any_is_opened(shards: Path) -> None:
    """S62: a missing shard went unnoticed and weights stayed uninitialised."""
    (shards / "one.safetensors").write_bytes(b"not opened yet")
    (shards / "two.safetensors").unlink()
    with pytest.raises(FormatError, match=r"2 files, of which 1 are missing.*two\.safetensors"):
        open_sharded(shards)


def test_index_and_shards_must_name_the_same_tensors_in_both_directions(shards: Path) -> None:
    whole = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
    write_index(shards, whole | {"d": "two.safetensors"})
    with pytest.raises(FormatError, match=r"not there: 'd' in two\.safetensors"):
        open_sharded(shards)
    write_index(shards, whole | {"b": "two.safetensors"})
    with pytest.raises(FormatError, match=r"not there: 'b' in two\.safetensors"):
        open_sharded(shards)
    write_index(shards, {"a": "one.safetensors", "c": "two.safetensors"})
    with pytest.raises(FormatError, match=r"does not name.*'b' in one\.safetensors"):
        open_sharded(shards)


@pytest.mark.parametrize(
    "name", ["../one.safetensors", "/etc/one.safetensors", "x/one.safetensors", "..\\one.safetensors",
             "C:one.safetensors", "one.bin", "", 7, None, "a\0.safetensors"],
)  # fmt: skip
def test_shard_names_that_leave_the_folder_are_refused(name: Any, shards: Path) -> None:
    write_index(shards, {"a": name})
    with pytest.raises(FormatError, match=r"allowed are \.safetensors files"):
        open_sharded(shards)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "{" * 9, '{"weight_map"']
)
def test_indexes_that_are_none_are_refused(text: str, shards: Path) -> None:
    (shards / INDEX).write_text(text)
    with pytest.raises(FormatError, match="index"):
        open_sharded(shards)


def read_everything(path: Path) -> None:
    with open_safetensors(path) as file:
        for name in file.tensors:
            file.read(name)


@pytest.mark.parametrize("count", [150, pytest.param(3000, marks=pytest.mark.long)])
def test_mutated_headers_give_a_format_error_or_a_valid_read(
    count: int, tmp_path: Path, fuzz: Callable, random_floats: Callable
) -> None:
    path = tmp_path / "m.safetensors"
    save_file(
        {"w": random_floats((4, 8)), "v": random_floats((8,)).astype(np.float16)}, path, metadata={"a": "b"}
    )
    content = path.read_bytes()
    assert fuzz(content, read_everything, count, head_bytes=len(content) - 144) > 1 / 4

"""Reading GGUF agrees with the format owner's library, value for value."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize

from weights_tools.formats import FormatError, TensorFile, open_gguf
from weights_tools.formats.gguf_header import SUPPORTED, TYPE_NAMES
from weights_tools.formats.storage import SLICE_ELEMENTS, STORAGE_TYPES

K_QUANT_SCALES = {"Q4_K": slice(0, 4), "Q5_K": slice(0, 4), "Q6_K": slice(208, 210)}


def stored(type_name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Values in a storage type, as the library writes them (random blocks where it cannot quantise)."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=shape).astype(np.float32)
    if type_name in ("F32", "F16"):
        return values.astype(np.float32 if type_name == "F32" else np.float16)
    if type_name not in K_QUANT_SCALES:
        return quantize(values, GGMLQuantizationType[type_name])
    block_elements, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
    blocks = rng.integers(0, 256, size=(values.size // block_elements, block_bytes), dtype=np.uint8)
    scales = K_QUANT_SCALES[type_name]
    count = (scales.stop - scales.start) // 2
    blocks[:, scales] = rng.normal(size=(len(blocks), count)).astype(np.float16).view(np.uint8)
    return blocks.reshape(*shape[:-1], shape[-1] // block_elements * block_bytes)


def write(path: Path, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> Path:
    writer = GGUFWriter(path, "llama")
    for seed, (name, (type_name, shape)) in enumerate(tensors.items()):
        raw_type = None if type_name in ("F32", "F16") else GGMLQuantizationType[type_name]
        writer.add_tensor(name, stored(type_name, shape, seed), raw_dtype=raw_type)
    add_every_kind_of_value(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_every_kind_of_value(writer: GGUFWriter) -> None:
    writer.add_uint8("t.u8", 200)
    writer.add_int8("t.i8", -100)
    writer.add_uint16("t.u16", 60_000)
    writer.add_int16("t.i16", -30_000)
    writer.add_uint32("t.u32", 4_000_000_000)
    writer.add_int32("t.i32", -2_000_000_000)
    writer.add_uint64("t.u64", 2**64 - 1)
    writer.add_int64("t.i64", -(2**63))
    writer.add_float32("t.f32", 1e-5)
    writer.add_float64("t.f64", 1e-300)
    writer.add_bool("t.yes", True)
    writer.add_bool("t.no", False)
    writer.add_string("t.text", "Ünïcödé ▁the 🙂")
    writer.add_string("t.lines", "a\nb\0c")
    writer.add_array("t.words", ["", "a", "▁the", "🙂"])
    writer.add_array("t.ints", [1, -2, 3])
    writer.add_array("t.floats", [0.5, -1.25])
    writer.add_array("t.flags", [True, False])


def library_values(reader: GGUFReader, name: str) -> np.ndarray:
    """A tensor through the library alone."""
    tensor = next(tensor for tensor in reader.tensors if tensor.name == name)
    shape = tuple(int(n) for n in tensor.shape[::-1])
    return np.asarray(dequantize(np.array(tensor.data), tensor.tensor_type)).reshape(shape)


def same_table(path: Path, reader: GGUFReader) -> None:
    with open_gguf(path) as file:
        table = [(i.name, i.shape, i.type_name, i.offset, i.size_bytes) for i in file.tensors.values()]
    assert table == [
        (t.name, tuple(t.shape.tolist()[::-1]), t.tensor_type.name, int(t.data_offset), int(t.n_bytes))
        for t in reader.tensors
    ]


def same_metadata(path: Path, reader: GGUFReader) -> int:
    """Compares every value with what the library reads; gives how many."""
    with open_gguf(path) as file:
        assert list(file.metadata) == [key for key in reader.fields if not key.startswith("GGUF.")]
        for key in file.metadata:
            ours, theirs = file.metadata[key], reader.fields[key].contents()
            assert (ours.tolist() if isinstance(ours, np.ndarray) else ours) == theirs, key
            if not isinstance(theirs, list):
                assert type(ours) is type(theirs)
        return len(file.metadata)


@pytest.mark.parametrize("type_name", SUPPORTED)
def test_every_supported_type_reads_as_the_library_reads_it(type_name: str, tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.gguf",
        {"w": (type_name, (6, 512)), "cube": (type_name, (2, 3, 256)), "row": (type_name, (768,))},
    )
    reader = GGUFReader(path)
    same_table(path, reader)
    with open_gguf(path) as file:
        for name in file.tensors:
            np.testing.assert_array_equal(file.read(name), library_values(reader, name), strict=True)


@pytest.mark.parametrize("version", [2, 3])
def test_every_kind_of_metadata_value_reads_as_the_library_reads_it(version: int, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"w": ("F32", (2, 32))})
    content = bytearray(path.read_bytes())
    content[4] = version
    path.write_bytes(content)
    same_metadata(path, GGUFReader(path))
    with open_gguf(path) as file:
        assert file.version == version


def test_bf16_words_widen_by_a_shift(gguf, tmp_path: Path) -> None:
    """A GGUF of type 30, shape [2, 4], was once read as raw bytes with a shape that did not match."""
    # 0x3FC0 << 16 = 0x3FC00000 = 1.5; 0xC000 -> -2.0; 0x7F80 -> infinity; 0x0001 -> 2**-133
    words = np.array([0x3FC0, 0xC000, 0x7F80, 0x0001, 0, 0x8000, 0x3F80, 0x4049], "<u2")
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf.file([], [gguf.tensor("w", [4, 2], 30)], words.tobytes()))
    with open_gguf(path) as file:
        expected = np.array([[1.5, -2.0, np.inf, 2.0**-133], [0.0, -0.0, 1.0, 3.140625]], np.float32)
        np.testing.assert_array_equal(file.read("w"), expected, strict=True)


@pytest.mark.parametrize("type_name", ["F32", "BF16", "Q4_1", "Q6_K"])
@pytest.mark.parametrize("rows", [slice(None), slice(0, 1), slice(3, 7), slice(5, None), slice(4, 4)])
def test_a_window_of_rows_is_that_part_of_the_whole(type_name: str, rows: slice, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"w": (type_name, (9, 256))})
    with open_gguf(path) as file:
        whole = file.read("w")
        out = np.full(whole[rows].shape, np.nan, np.float32)
        file.read_into("w", out, rows)
        np.testing.assert_array_equal(out, whole[rows])


@pytest.mark.parametrize("type_name", ["F16", "Q4_0", "Q4_K"])
def test_any_strides_of_the_target_get_the_same_values(type_name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"w": (type_name, (300, 512))})  # more than two slices
    with open_gguf(path) as file:
        whole = file.read("w")
        joint = np.full((700, 512), np.nan, np.float32)
        file.read_into("w", joint[100:400])
        np.testing.assert_array_equal(joint[100:400], whole)
        assert np.isnan(joint[:100]).all()
        assert np.isnan(joint[400:]).all()
        transposed = np.empty((512, 300), np.float32).T
        file.read_into("w", transposed)
        np.testing.assert_array_equal(transposed, whole)
        columns = np.empty((300, 1024), np.float32)[:, 256:768]
        file.read_into("w", columns)
        np.testing.assert_array_equal(columns, whole)


def test_rows_longer_than_a_slice_are_read_whole_into_any_strides(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"w": ("Q8_0", (3, SLICE_ELEMENTS + 32))})
    with open_gguf(path) as file:
        whole = file.read("w")
        transposed = np.empty(whole.shape[::-1], np.float32).T
        file.read_into("w", transposed)
        np.testing.assert_array_equal(transposed, whole)
        np.testing.assert_array_equal(whole, library_values(GGUFReader(path), "w"))


@pytest.mark.parametrize("type_name", SUPPORTED)
def test_reading_needs_little_memory_beyond_the_target(type_name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"w": (type_name, (16, SLICE_ELEMENTS))})
    out = np.empty((16, SLICE_ELEMENTS), np.float32)  # 4 MB
    with open_gguf(path) as file:
        file.read_into("w", out)  # the library is imported and warm
        tracemalloc.start()
        file.read_into("w", out)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak_bytes < 3e6


def test_a_target_of_another_shape_type_or_read_only_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"w": ("F32", (4, 32))})
    locked = np.empty((4, 32), np.float32)
    locked.flags.writeable = False
    with open_gguf(path) as file:
        for out in (np.empty((32, 4), np.float32), np.empty((4, 32)), np.empty(128, np.float32), locked):
            with pytest.raises(FormatError, match="writeable float32 array"):
                file.read_into("w", out)


@pytest.mark.parametrize("rows", [slice(0, 5), slice(-1, None), slice(3, 2), slice(0, 4, 2)])
def test_rows_that_do_not_exist_are_refused_and_not_clamped(rows: slice, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"w": ("F32", (4, 32))})
    with open_gguf(path) as file, pytest.raises(FormatError, match="do not exist"):
        file.read_into("w", np.empty((1, 32), np.float32), rows)


def test_part_of_a_block_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"w": ("Q8_0", (64,))})
    with open_gguf(path) as file:
        half = np.empty(32, np.float32)
        file.read_into("w", half, slice(32, 64))
        np.testing.assert_array_equal(half, file.read("w")[32:])
        with pytest.raises(FormatError, match="whole blocks"):
            file.read_into("w", half, slice(16, 48))


def test_an_unknown_name_and_a_closed_file_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"w": ("F32", (4, 32))})
    file = open_gguf(path)
    with pytest.raises(FormatError, match=r"m\.gguf has no tensor named 'v'"):
        file.read("v")
    file.close()
    file.close()
    with pytest.raises(FormatError, match="closed"):
        file.read("w")
    with pytest.raises(FormatError, match="closed"):
        file.metadata["t.text"]


def test_nan_and_infinity_in_scales_pass_without_a_warning(gguf, tmp_path: Path) -> None:
    block = np.array([np.inf, np.nan], np.float16).tobytes() + bytes(range(16))
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf.file([], [gguf.tensor("w", [32], 3)], block))
    with open_gguf(path) as file:
        assert np.isnan(file.read("w")).all()


def test_metadata_tells_lengths_and_membership_without_decoding(gguf, tmp_path: Path) -> None:
    bad_text = (
        (b"\x08\0\0\0" + b"\x03\0\0\0\0\0\0\0") + gguf.string(b"ok") + gguf.string(b"\xff") + gguf.string("")
    )
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf.file([gguf.key("words", 9, bad_text)]))
    with open_gguf(path) as file:
        assert "words" in file.metadata
        assert "other" not in file.metadata
        assert file.metadata.length("words") == 3
        assert file.metadata.get("other", "none") == "none"
        with pytest.raises(FormatError, match="'words' is not valid UTF-8"):
            file.metadata["words"]


def test_type_names_and_block_sizes_are_those_of_the_library() -> None:
    for member in GGMLQuantizationType:
        assert TYPE_NAMES.get(member.value, member.name) == member.name
    for name in SUPPORTED:
        storage = STORAGE_TYPES[name]
        sizes = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
        assert (storage.block_elements, storage.block_bytes) == sizes
        assert SLICE_ELEMENTS % storage.block_elements == 0


def test_opening_does_not_import_the_library(tmp_path: Path, run_python: Callable[[str], str]) -> None:
    path = write(tmp_path / "m.gguf", {"w": ("F16", (2, 32))})
    code = f"""
import sys
from weights_tools.formats import open_gguf
open_gguf({str(path)!r}).read("w")
print("gguf" in sys.modules, "safetensors" in sys.modules)
"""
    assert run_python(code) == "False False\n"


def test_a_golden_vocabulary_reads_as_the_library_reads_it(golden: Path) -> None:
    path = golden / "tokenizers" / "ggml-vocab-llama-spm.gguf"
    reader = GGUFReader(path)
    same_table(path, reader)
    assert same_metadata(path, reader) > 10


@pytest.mark.long
def test_all_golden_vocabularies_read_as_the_library_reads_them(golden: Path) -> None:
    paths = sorted((golden / "tokenizers").glob("*.gguf"))
    assert paths
    for path in paths:
        assert same_metadata(path, GGUFReader(path)) > 10


@pytest.mark.weights
def test_smollm2_reads_as_the_library_reads_it(smollm2_path: Path) -> None:
    reader = GGUFReader(smollm2_path)
    same_table(smollm2_path, reader)
    same_metadata(smollm2_path, reader)
    with open_gguf(smollm2_path) as file:
        for name in (
            "token_embd.weight",
            "blk.0.attn_q.weight",
            "blk.17.ffn_down.weight",
            "output_norm.weight",
        ):
            np.testing.assert_array_equal(file.read(name), library_values(reader, name), strict=True)


def test_the_file_is_a_tensor_file(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"w": ("F32", (2, 32))})
    with open_gguf(path) as opened:
        file: TensorFile = opened
        info = file.tensors["w"]
        assert (info.elements, info.size_bytes) == (64, 256)
        with pytest.raises(TypeError):
            file.tensors["v"] = info  # type: ignore[index]

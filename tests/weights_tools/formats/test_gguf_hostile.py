"""GGUF files that are damaged, foreign or made to do harm are refused in one sentence, quickly and cheaply.

FAULTS: S66 (numbers chosen by an attacker), S67 (byte order), S68 (unknown types), S70 (pickle).
"""

import os
import pickle
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from weights_tools.formats import FormatError, open_gguf

U32, U64, STRING, ARRAY = 4, 10, 8, 9


def number(value: int) -> bytes:
    return struct.pack("<I", value)


def array(kind: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + payload


def test_the_smallest_file_and_a_scalar_tensor_are_accepted(gguf, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf.file())
    with open_gguf(path) as file:
        assert (len(file.metadata), len(file.tensors)) == (0, 0)
    path.write_bytes(gguf.file([], [gguf.tensor("scalar", [])], np.float32(2.5).tobytes()))
    with open_gguf(path) as file:
        assert file.read("scalar") == np.float32(2.5)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "an empty file"),
        (b"PK\x03\x04" + bytes(60), "never loads"),
        (pickle.dumps({"w": [1.0]}), "pickle"),
        (pickle.dumps({"w": [1.0]}, protocol=2), "pickle"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"<!DOCTYPE html>\n<html><body>404</body></html>", "web page"),
        (b"\n<html>", "web page"),
        (struct.pack("<Q", 20) + b'{"__metadata__":{}}  ', "safetensors"),
        (b'{"model_type": "llama"}', "JSON"),
        (b"\x1f\x8b\x08" + bytes(40), "gzip"),
        (b"tjgg\x03\0\0\0", "before GGUF"),
        (b"GGU", "GGU"),
        (bytes(range(100, 164)), "begins with b'defg'"),
    ],
)
def test_a_foreign_file_is_named_for_what_it_looks_like(content: bytes, says: str, refused: Callable) -> None:
    message = refused(open_gguf, content)
    assert "not a GGUF file" in message
    assert says in message


def test_a_torch_checkpoint_is_refused_and_its_pickle_never_runs(tmp_path: Path) -> None:
    """S70: loading a pickled checkpoint could run code."""
    marker = tmp_path / "ran"

    class Payload:
        def __reduce__(self) -> tuple[Callable, tuple[str]]:
            return os.mkdir, (str(marker),)

    for name, content in (("a.gguf", None), ("b.gguf", pickle.dumps(Payload()))):
        path = tmp_path / name
        if content is None:
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("archive/data.pkl", pickle.dumps(Payload()))
        else:
            path.write_bytes(content)
        with pytest.raises(FormatError, match="never loads"):
            open_gguf(path)
    assert not marker.exists()


def test_a_missing_file_a_folder_and_a_pipe_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, says in (
        ("none.gguf", "there is no file"),
        (".", "is a folder"),
        ("pipe", "not a regular file"),
    ):
        with pytest.raises(FormatError, match=says):
            open_gguf(tmp_path / name)
    with pytest.raises(FormatError, match="cannot be opened"):
        open_gguf("a\0b")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_big_endian_file_is_called_big_endian(version: int, refused: Callable) -> None:
    """S67: byte order was assumed, and the swapped counts made the reader panic."""
    message = refused(open_gguf, b"GGUF" + struct.pack(">IQQ", version, 1, 1) + bytes(100))
    assert "big-endian" in message


@pytest.mark.parametrize("version", [0, 1, 4, 2**32 - 1])
def test_an_unknown_version_is_refused_by_number(version: int, gguf, refused: Callable) -> None:
    assert f"version {version} is not supported" in refused(open_gguf, gguf.file(version=version) + bytes(64))


@pytest.mark.parametrize("what", ["tensor_count", "key_count"])
@pytest.mark.parametrize("count", [1, 100, 2**32, 2**60, 2**63, 2**64 - 1])
def test_a_count_beyond_the_file_is_refused(what: str, count: int, gguf, refused: Callable) -> None:
    message = refused(open_gguf, gguf.file(**{what: count}))
    assert f"is {count}, which is more than fits" in message


TOO_MUCH = re.compile(
    r"needs \d+ bytes, but only \d+ are left|has a name of \d+ bytes|is \d+, which is more than fits"
)


@pytest.mark.parametrize("length", [100, 2**31, 2**60, 2**64 - 1])
def test_a_length_beyond_the_file_is_refused(length: int, gguf, refused: Callable) -> None:
    """The 43-byte file of S66 and its relatives: lengths of keys, texts, arrays and names."""
    lie = struct.pack("<Q", length) + b"ab"
    for key in (
        lie + bytes(13),
        gguf.key("k", STRING, lie),
        gguf.key("k", ARRAY, array(STRING, 1, lie)),
        gguf.key("k", ARRAY, array(STRING, 2, gguf.string("fine") + lie)),
        gguf.key("k", ARRAY, array(STRING, length, b"ab")),
        gguf.key("k", ARRAY, array(U64, length, b"ab")),
        gguf.key("k", ARRAY, array(0, length, b"ab")),
    ):
        assert TOO_MUCH.search(refused(open_gguf, gguf.file([key])))
    assert TOO_MUCH.search(refused(open_gguf, gguf.file([], [lie + bytes(20)])))


def test_many_empty_strings_cannot_keep_the_reader_busy(gguf, refused: Callable) -> None:
    count = 1 << 22  # 32 MB of lengths of zero
    message = refused(open_gguf, gguf.file([gguf.key("k", ARRAY, array(STRING, count, bytes(8 * count)))]))
    assert "accepted" in message


@pytest.mark.parametrize("axes", [5, 100, 2**31, 2**32 - 1])
def test_more_than_four_dimensions_are_refused(axes: int, gguf, refused: Callable) -> None:
    message = refused(open_gguf, gguf.file([], [gguf.tensor("w", [1, 1, 1, 1, 1], axes=axes)], bytes(64)))
    assert f"tensor 'w' has {axes} dimensions" in message


@pytest.mark.parametrize(
    "dims", [[2**32, 2**32], [2**63, 2], [2**16] * 4, [2**64 - 1] * 4, [2**62, 2, 2, 1], [17, 1]]
)
def test_dimensions_whose_product_wraps_or_exceeds_the_file_are_refused(
    dims: list[int], gguf, refused: Callable
) -> None:
    message = refused(open_gguf, gguf.file([], [gguf.tensor("w", dims)], bytes(64)))
    assert "but the file at" in message


def test_a_dimension_of_zero_is_refused(gguf, refused: Callable) -> None:
    assert "zero" in refused(open_gguf, gguf.file([], [gguf.tensor("w", [0, 2**63])], bytes(64)))


@pytest.mark.parametrize("alignment", [0, 1, 3, 33, 2**17, 2**30, 2**31, 2**32 - 1])
def test_an_absurd_alignment_is_refused(alignment: int, gguf, refused: Callable) -> None:
    key = gguf.key("general.alignment", U32, number(alignment))
    assert f"alignment is {alignment}" in refused(
        open_gguf, gguf.file([key], [gguf.tensor("w", [1])], bytes(4))
    )


@pytest.mark.parametrize(
    "payload", [(STRING, b"\x02" + bytes(7) + b"32"), (6, b"\0\0\0\x42"), (ARRAY, array(U32, 0))]
)
def test_an_alignment_of_another_type_is_refused(payload: tuple[int, bytes], gguf, refused: Callable) -> None:
    key = gguf.key("general.alignment", *payload)
    assert "general.alignment is not" in refused(open_gguf, gguf.file([key]))


def test_another_alignment_is_followed(gguf, tmp_path: Path) -> None:
    key = gguf.key("general.alignment", U32, number(128))
    content = gguf.file(
        [key], [gguf.tensor("w", [2], offset=128)], bytes(128) + struct.pack("<2f", 1, 2), alignment=128
    )
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with open_gguf(path) as file:
        assert file.read("w").tolist() == [1, 2]


@pytest.mark.parametrize("depth", [1, 50])
def test_nested_arrays_are_refused(depth: int, gguf, refused: Callable) -> None:
    key = gguf.key("k", ARRAY, array(ARRAY, 1) * depth + array(U32, 0))
    assert "array of arrays" in refused(open_gguf, gguf.file([key]))


@pytest.mark.parametrize("kind", [13, 99, 2**32 - 1])
def test_unknown_value_types_are_refused_with_their_key(kind: int, gguf, refused: Callable) -> None:
    for key in (gguf.key("k", kind, bytes(16)), gguf.key("k", ARRAY, array(kind, 1, bytes(16)))):
        message = refused(open_gguf, gguf.file([key]))
        assert "'k'" in message
        assert str(kind) in message


def test_duplicate_keys_and_tensors_are_refused_by_name(gguf, refused: Callable) -> None:
    key = gguf.key("twice", U32, number(1))
    assert "'twice' occurs twice" in refused(open_gguf, gguf.file([key, key]))
    tensors = [gguf.tensor("w", [1]), gguf.tensor("w", [1], offset=32)]
    assert "'w' occurs twice" in refused(open_gguf, gguf.file([], tensors, bytes(64)))


def test_overlapping_tensors_are_refused_by_both_names(gguf, refused: Callable) -> None:
    tensors = [
        gguf.tensor("later", [1], offset=32),
        gguf.tensor("early", [9]),
    ]  # 36 bytes reach into the next
    message = refused(open_gguf, gguf.file([], tensors, bytes(64)))
    assert "'early' and 'later' overlap" in message


@pytest.mark.parametrize("offset", [32, 64, 2**40, 2**63, 2**64 - 32])
def test_a_tensor_outside_the_file_is_refused(offset: int, gguf, refused: Callable) -> None:
    message = refused(open_gguf, gguf.file([], [gguf.tensor("w", [8], offset=offset)], bytes(32)))
    assert "but the file at" in message


def test_an_unaligned_tensor_is_refused(gguf, refused: Callable) -> None:
    message = refused(open_gguf, gguf.file([], [gguf.tensor("w", [1], offset=4)], bytes(64)))
    assert "multiple of the alignment 32" in message


@pytest.mark.parametrize(("type_id", "row"), [(3, 33), (8, 16), (14, 128)])
def test_rows_that_are_no_whole_blocks_are_refused(type_id: int, row: int, gguf, refused: Callable) -> None:
    message = refused(open_gguf, gguf.file([], [gguf.tensor("w", [row, 64], type_id)], bytes(40_000)))
    assert "-value blocks" in message


@pytest.mark.parametrize(
    ("type_id", "name"), [(17, "IQ2_XS"), (10, "Q2_K"), (26, "I32"), (31, "Q4_0_4_4"), (39, "MXFP4")]
)
def test_other_types_are_refused_by_name(type_id: int, name: str, gguf, refused: Callable) -> None:
    message = refused(open_gguf, gguf.file([], [gguf.tensor("blk.0.w", [256], type_id)], bytes(1024)))
    assert f"tensor 'blk.0.w' has type {name} (id {type_id})" in message
    assert "Q4_K" in message


@pytest.mark.parametrize("type_id", [99, 2**32 - 1])
def test_unknown_type_ids_are_refused_with_tensor_and_id(type_id: int, gguf, refused: Callable) -> None:
    message = refused(open_gguf, gguf.file([], [gguf.tensor("w", [256], type_id)], bytes(1024)))
    assert f"tensor 'w' has the unknown type id {type_id}" in message


def test_names_that_are_not_utf8_are_refused(gguf, refused: Callable) -> None:
    assert "UTF-8" in refused(open_gguf, gguf.file([gguf.key(b"k\xff", U32, number(1))]))
    assert "UTF-8" in refused(open_gguf, gguf.file([], [gguf.tensor(b"\xc3", [1])], bytes(4)))


def test_a_long_name_does_not_flood_the_message(gguf, refused: Callable) -> None:
    key = gguf.key("k" * 60_000, 99, bytes(16))
    assert "k" * 200 not in refused(open_gguf, gguf.file([key]))
    assert "k" * 200 not in refused(open_gguf, gguf.file([gguf.key("k" * 70_000, U32, number(1))]))
    assert "\x1b" not in refused(open_gguf, gguf.file([gguf.key("\n\x1b[31m", 99, bytes(16))]))


def test_a_boolean_that_is_neither_0_nor_1_is_refused_when_asked_for(gguf, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf.file([gguf.key("flag", 7, b"\x02"), gguf.key("fine", 7, b"\x01")]))
    with open_gguf(path) as file:
        assert file.metadata["fine"] is True
        with pytest.raises(FormatError, match="'flag'"):
            file.metadata["flag"]


def small_real_file(path: Path) -> bytes:
    writer = GGUFWriter(path, "llama")
    writer.add_name("a small model")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.rope.freq_base", 10_000.0)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_token_list(["<unk>", "<s>", "▁the", "🙂"] * 8)
    writer.add_token_scores([-float(n) for n in range(32)])
    writer.add_token_types([1] * 32)
    values = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    for name in ("token_embd.weight", "blk.0.attn_q.weight"):
        writer.add_tensor(name, values)
    writer.add_tensor("output_norm.weight", values[0].astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def read_everything(path: Path) -> None:
    with open_gguf(path) as file:
        for key in file.metadata:
            file.metadata[key]
        for name, info in file.tensors.items():
            assert info.size_bytes <= path.stat().st_size
            file.read(name)


def test_every_truncation_of_the_header_is_refused(tmp_path: Path) -> None:
    content = small_real_file(tmp_path / "m.gguf")
    path = tmp_path / "cut.gguf"
    for length in range(0, len(content), 13):
        path.write_bytes(content[:length])
        with pytest.raises(FormatError):
            open_gguf(path)


@pytest.mark.parametrize("count", [200, pytest.param(4000, marks=pytest.mark.long)])
def test_mutated_headers_give_a_format_error_or_a_valid_read(
    count: int, tmp_path: Path, fuzz: Callable
) -> None:
    content = small_real_file(tmp_path / "m.gguf")
    data_bytes = 2 * 1024 + 128
    assert fuzz(content, read_everything, count, head_bytes=len(content) - data_bytes) > 1 / 4


@pytest.mark.parametrize("count", [5, pytest.param(300, marks=pytest.mark.long)])
def test_mutated_golden_headers_give_a_format_error_or_a_valid_read(
    count: int, golden: Path, fuzz: Callable
) -> None:
    content = (golden / "tokenizers" / "ggml-vocab-phi-3.gguf").read_bytes()
    assert fuzz(content, read_everything, count, head_bytes=3000) > 0

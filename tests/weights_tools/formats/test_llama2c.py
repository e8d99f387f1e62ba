"""llama2.c weights and tokenizers, against sizes and places computed by hand and the published model."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from weights_tools.formats import FormatError, TensorFile, open_llama2c, read_llama2c_tokenizer

# dim 8, hidden 6, 2 layers, 2 heads of 4, 1 key/value head, vocabulary 5, context 3
HEADER = (8, 6, 2, 2, 1, 5, 3)
# Floats by hand: embedding 5*8 = 40; a layer: norms 8 + 8, wq and wo 64 each, wk and wv 4*8 = 32 each, w1, w2
# and w3 48 each = 352; final norm 8; RoPE tables 3*2 + 3*2 = 12; in all 40 + 2*352 + 8 + 12 = 764.
FLOATS = 764


def small_file(header: tuple[int, ...] = HEADER, floats: int = FLOATS) -> bytes:
    return struct.pack("<7i", *header) + np.arange(floats, dtype="<f4").tobytes()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_blocks_are_found_in_the_order_of_the_file(tmp_path: Path) -> None:
    """Values count up through the file, so the first value of each tensor is its place, computed by hand."""
    first_and_shape = {
        "token_embedding_table": (0, (5, 8)),
        "layers.0.rms_att_weight": (40, (8,)),
        "layers.1.rms_att_weight": (48, (8,)),
        "layers.0.wq": (56, (8, 8)),
        "layers.1.wq": (120, (8, 8)),
        "layers.0.wk": (184, (4, 8)),
        "layers.1.wk": (216, (4, 8)),
        "layers.0.wv": (248, (4, 8)),
        "layers.1.wv": (280, (4, 8)),
        "layers.0.wo": (312, (8, 8)),
        "layers.1.wo": (376, (8, 8)),
        "layers.0.rms_ffn_weight": (440, (8,)),
        "layers.1.rms_ffn_weight": (448, (8,)),
        "layers.0.w1": (456, (6, 8)),
        "layers.1.w1": (504, (6, 8)),
        "layers.0.w2": (552, (8, 6)),
        "layers.1.w2": (600, (8, 6)),
        "layers.0.w3": (648, (6, 8)),
        "layers.1.w3": (696, (6, 8)),
        "rms_final_weight": (744, (8,)),
    }
    with open_llama2c(write(tmp_path / "m.bin", small_file())) as file:
        assert list(file.tensors) == list(first_and_shape)
        for name, (first, shape) in first_and_shape.items():
            values = file.read(name)
            assert values.shape == shape
            assert values.ravel().tolist() == list(range(first, first + values.size))


def test_a_negative_vocabulary_means_an_untied_head_at_the_end(tmp_path: Path) -> None:
    """S69: the sign is a flag; the file was misread."""
    header = (8, 6, 2, 2, 1, -5, 3)
    with open_llama2c(write(tmp_path / "m.bin", small_file(header, FLOATS + 40))) as file:
        assert (file.metadata["vocab_size"], file.metadata["output"]) == (5, "separate")
        # after the final norm (752) come 12 floats of RoPE tables
        assert file.read("wcls").ravel().tolist() == list(range(764, 804))
    with open_llama2c(write(tmp_path / "t.bin", small_file())) as tied:
        assert tied.metadata["output"] == "tied"
        assert "wcls" not in tied.tensors


@pytest.mark.parametrize("difference", [-4, -1, 1, 4])
def test_a_length_that_disagrees_with_the_header_is_refused_with_both_numbers(
    difference: int, refused: Callable
) -> None:
    content = small_file() + bytes(max(difference, 0))
    content = content[: len(content) + min(difference, 0)]
    message = refused(open_llama2c, content)
    assert str(28 + 4 * FLOATS) in message
    assert str(28 + 4 * FLOATS + difference) in message


@pytest.mark.parametrize("field", range(7))
@pytest.mark.parametrize("value", [0, -1, -(2**31), 2**31 - 1, 7])
def test_other_numbers_in_the_header_are_refused(field: int, value: int, refused: Callable) -> None:
    header = list(HEADER)
    header[field] = value
    assert "its header" in refused(open_llama2c, small_file(tuple(header)))


@pytest.mark.parametrize(
    ("header", "floats", "says"),
    [
        # heads of 8 // 4 = 2: a layer 8 + 8 + 2*64 + 2*6*8 + 3*48 = 384; RoPE 3*2; 40 + 768 + 8 + 6
        ((8, 6, 2, 4, 3, 5, 3), 822, "4 query heads cannot share 3"),
        # heads of 8 // 3 = 2: a layer 8 + 8 + 2*64 + 2*2*8 + 3*48 = 320; 40 + 640 + 8 + 6
        ((8, 6, 2, 3, 1, 5, 3), 694, "dim 8 cannot be shared by 3 heads"),
    ],
)
def test_heads_that_do_not_divide_are_refused_even_at_the_right_length(
    header: tuple[int, ...], floats: int, says: str, refused: Callable
) -> None:
    assert says in refused(open_llama2c, small_file(header, floats))


def test_a_llama2c_file_of_width_640_is_not_taken_for_a_pickle(tmp_path: Path) -> None:
    """640 is 80 02 00 00 in the file, which begins like a pickle of protocol 2."""
    content = struct.pack("<7i", 640, 1, 1, 1, 1, 1, 1)
    floats = 640 + (640 + 4 * 640 * 640 + 640 + 3 * 640) + 640 + 640
    with open_llama2c(write(tmp_path / "m.bin", content + bytes(4 * floats))) as file:
        assert file.metadata["dim"] == 640


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "empty"), (b"PK\x03\x04" + bytes(60), "never loads"), (b"\x80\x02}q\x00.", "never loads"),
     (b"GGUF" + bytes(60), "a GGUF file"), (b"24ka" + bytes(252), "version 0"), (b"\1\0", "too few")],
)  # fmt: skip
def test_foreign_files_are_named(content: bytes, says: str, refused: Callable) -> None:
    assert says in refused(open_llama2c, content)


def test_windows_of_rows_and_any_strides(tmp_path: Path) -> None:
    with open_llama2c(write(tmp_path / "m.bin", small_file())) as opened:
        file: TensorFile = opened
        out = np.empty((8, 2), np.float32).T
        file.read_into("layers.1.w1", out, slice(2, 4))
        assert out.tolist() == np.arange(520, 536).reshape(2, 8).tolist()
    with pytest.raises(FormatError, match="closed"):
        file.read_into("layers.1.w1", out, slice(2, 4))


def test_stories260k_has_its_published_sizes(golden: Path) -> None:
    with open_llama2c(golden / "stories260k" / "stories260K.bin") as file:
        assert dict(file.metadata) == {
            "dim": 64, "hidden_dim": 172, "n_layers": 5, "n_heads": 8, "n_kv_heads": 4, "vocab_size": 512,
            "seq_len": 512, "output": "tied",
        }  # fmt: skip
        assert sum(info.elements for info in file.tensors.values()) == 260_032  # "a 260,000-parameter Llama"
        assert all(np.isfinite(file.read(name)).all() for name in file.tensors)


def pieces_file(pieces: list[tuple[float, bytes]], longest: int = 9) -> bytes:
    return struct.pack("<i", longest) + b"".join(struct.pack("<fi", s, len(p)) + p for s, p in pieces)


def test_pieces_and_scores_come_in_the_order_of_the_ids(tmp_path: Path) -> None:
    path = write(tmp_path / "tok.bin", pieces_file([(0.0, b"<unk>"), (-1.5, "▁é".encode()), (2.0, b"")]))
    pieces, scores = read_llama2c_tokenizer(path, 3)
    assert pieces == [b"<unk>", "▁é".encode(), b""]
    assert scores.dtype == np.float32
    assert scores.tolist() == [0.0, -1.5, 2.0]
    assert len(read_llama2c_tokenizer(path)[0]) == 3


def test_a_tokenizer_of_another_size_than_the_model_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "tok.bin", pieces_file([(0.0, b"a")]))
    with pytest.raises(FormatError, match="holds 1 tokens, but the model has 2"):
        read_llama2c_tokenizer(path, 2)


def test_every_truncation_inside_a_token_is_refused(tmp_path: Path) -> None:
    content = pieces_file([(0.0, b"abc"), (1.0, b"de")])
    whole = {4, 4 + 11, 4 + 11 + 10}  # after the first number, and after each token
    for length in range(len(content) + 1):
        path = write(tmp_path / "tok.bin", content[:length])
        if length in whole:
            read_llama2c_tokenizer(path)
        else:
            with pytest.raises(FormatError):
                read_llama2c_tokenizer(path)


@pytest.mark.parametrize("length", [-1, 10, 2**31 - 1, -(2**31)])
def test_lying_token_lengths_are_refused(length: int, refused: Callable) -> None:
    content = struct.pack("<ifi", 9, 0.0, length) + b"abcdefghijklmnop"
    assert "token 0" in refused(read_llama2c_tokenizer, content)


def test_the_published_tokenizer_has_512_pieces(golden: Path) -> None:
    pieces, scores = read_llama2c_tokenizer(golden / "stories260k" / "tok512.bin", 512)
    assert pieces[:4] == [b"<unk>", b"\n<s>\n", b"\n</s>\n", b"<0x00>"]
    assert max(map(len, pieces)) == 7  # the first number of the file
    assert np.isfinite(scores).all()


def use(path: Path) -> None:
    with open_llama2c(path) as file:
        for name in file.tensors:
            file.read(name)


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.long)])
def test_mutated_files_give_a_format_error_or_a_valid_read(count: int, fuzz: Callable) -> None:
    assert fuzz(small_file(), use, count, head_bytes=28) > 1 / 4
    assert fuzz(pieces_file([(float(n), b"piece") for n in range(20)]), read_llama2c_tokenizer, count) > 1 / 4

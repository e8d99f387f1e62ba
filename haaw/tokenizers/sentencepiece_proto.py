"""The few fields of SentencePiece's model file that HAAW reads and writes, in protobuf's wire format.

Only bytes and fields: no tokenizing. Field numbers are those of `sentencepiece_model.proto`; the wire
format is protobuf's published encoding (a varint key of field number and wire type before each value).
SentencePiece's own Python classes would need the `protobuf` package, which HAAW does without.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from haaw.errors import BadInputError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# ModelProto
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
# SentencePiece, one piece of the model
_PIECE, _PIECE_TYPE = 1, 3
_NORMAL, _CONTROL = 1, 3
# TrainerSpec
_MODEL_TYPE, _BYTE_FALLBACK, _UNK_ID, _BOS_ID, _EOS_ID, _PAD_ID = 3, 35, 40, 41, 42, 43
_UNK_SURFACE, _UNK_PIECE, _BOS_PIECE, _EOS_PIECE = 44, 45, 46, 47
# NormalizerSpec
_NAME, _ADD_DUMMY_PREFIX, _REMOVE_EXTRA_SPACES, _ESCAPE_SPACES = 1, 3, 4, 5
# SentencePieceText and its pieces (sentencepiece.proto)
_TEXT_PIECES = 2
_PIECE_ID, _BEGIN, _END = 2, 4, 5

_BPE = 2
_NO_ID = (1 << 64) - 1  # int32 -1 as a varint


@dataclass(frozen=True)
class ModelFlags:
    """What of a model file bears on decoding; the values are SentencePiece's defaults."""

    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    unk_surface: str = " \u2047 "


@dataclass(frozen=True)
class BpePieces:
    """The pieces of a model to be written: text, score and type (the numbers of `TokenType`) of each id."""

    pieces: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]
    unknown_id: int
    bos_id: int | None
    eos_id: int | None
    byte_fallback: bool


def bpe_model(content: BpePieces, flags: ModelFlags) -> bytes:
    """A model file of type BPE without any text normalisation."""
    out = bytearray()
    for piece, score, kind in zip(content.pieces, content.scores, content.types, strict=True):
        try:
            text = piece.encode("utf-8")
        except UnicodeEncodeError as error:
            raise BadInputError(
                f"the token {piece!r:.40} of the vocabulary is no valid Unicode text"
            ) from error
        body = b"\x0a" + _varint(len(text)) + text
        body += b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind])
        out += b"\x0a" + _varint(len(body)) + body
    out += _bytes_field(_TRAINER, _trainer(content, flags))
    out += _bytes_field(_NORMALIZER, _normalizer(flags))
    return bytes(out)


def without_dummy_prefix(model: bytes) -> bytes:
    """The same model, except that it puts no space before a text.

    Protobuf merges a message that occurs twice, the later value winning, so two fields at the end suffice.
    """
    return model + _bytes_field(_NORMALIZER, _number_field(_ADD_DUMMY_PREFIX, 0))


def read_flags(model: bytes) -> ModelFlags:
    """The flags of a model file; BadInputError if its fields do not add up."""
    dummy, extra, surface = True, True, ModelFlags.unk_surface
    for number, value in _fields(model):
        if number == _NORMALIZER and isinstance(value, bytes):
            for inner, flag in _fields(value):
                if inner == _ADD_DUMMY_PREFIX:
                    dummy = bool(flag)
                elif inner == _REMOVE_EXTRA_SPACES:
                    extra = bool(flag)
        elif number == _TRAINER and isinstance(value, bytes):
            for inner, text in _fields(value):
                if inner == _UNK_SURFACE and isinstance(text, bytes):
                    surface = text.decode("utf-8", "replace")
    return ModelFlags(dummy, extra, surface)


def with_control_pieces(model: bytes, names: frozenset[str]) -> bytes:
    """The same model with the named pieces typed as control, so that no text encodes as one of them."""
    wanted = {name.encode("utf-8") for name in names}
    out = bytearray()
    for number, value in _fields(model):
        if number == _PIECES and isinstance(value, bytes) and wanted.intersection(_piece_names(value)):
            value += _number_field(_PIECE_TYPE, _CONTROL)
        out += _bytes_field(number, value) if isinstance(value, bytes) else _number_field(number, value)
    return bytes(out)


def _piece_names(body: bytes) -> set[bytes]:
    return {value for number, value in _fields(body) if number == _PIECE and isinstance(value, bytes)}


def read_pieces(model: bytes) -> tuple[list[str], list[int]]:
    """The pieces and their types, by id; BadInputError for one that is not UTF-8."""
    pieces: list[str] = []
    types: list[int] = []
    for number, body in _fields(model):
        if number != _PIECES or not isinstance(body, bytes):
            continue
        text, kind = b"", _NORMAL
        for inner, value in _fields(body):
            if inner == _PIECE and isinstance(value, bytes):
                text = value
            elif inner == _PIECE_TYPE and isinstance(value, int):
                kind = value
        try:
            pieces.append(text.decode("utf-8"))
        except UnicodeDecodeError:
            raise BadInputError(f"Piece {len(pieces)} of the SentencePiece model is not UTF-8.") from None
        types.append(kind)
    return pieces, types


def read_spans(encoded: bytes) -> list[tuple[int, int, int]]:
    """The (id, first byte, end byte) of each piece of a serialized `SentencePieceText`."""
    spans = []
    for number, piece in _fields(encoded):
        if number == _TEXT_PIECES and isinstance(piece, bytes):
            values = {inner: value for inner, value in _fields(piece) if isinstance(value, int)}
            spans.append((values.get(_PIECE_ID, 0), values.get(_BEGIN, 0), values.get(_END, 0)))
    return spans


def _trainer(content: BpePieces, flags: ModelFlags) -> bytes:
    def role(number: int, token_id: int | None) -> bytes:
        return _number_field(number, _NO_ID if token_id is None else token_id)

    def name(number: int, token_id: int | None) -> bytes:
        return b"" if token_id is None else _bytes_field(number, content.pieces[token_id].encode("utf-8"))

    return b"".join(
        [
            _number_field(_MODEL_TYPE, _BPE),
            _number_field(_BYTE_FALLBACK, int(content.byte_fallback)),
            role(_UNK_ID, content.unknown_id),
            role(_BOS_ID, content.bos_id),
            role(_EOS_ID, content.eos_id),
            role(_PAD_ID, None),
            _bytes_field(_UNK_SURFACE, flags.unk_surface.encode("utf-8")),
            name(_UNK_PIECE, content.unknown_id),
            name(_BOS_PIECE, content.bos_id),
            name(_EOS_PIECE, content.eos_id),
        ]
    )


def _normalizer(flags: ModelFlags) -> bytes:
    return b"".join(
        [
            _bytes_field(_NAME, b"identity"),
            _number_field(_ADD_DUMMY_PREFIX, int(flags.add_dummy_prefix)),
            _number_field(_REMOVE_EXTRA_SPACES, int(flags.remove_extra_whitespaces)),
            _number_field(_ESCAPE_SPACES, 1),
        ]
    )


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number_field(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)


def _bytes_field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message as (number, value); fixed-width values stay bytes."""
    position = 0
    while position < len(message):
        key, position = _read_varint(message, position)
        kind = key & 7
        if kind == _VARINT:
            value, position = _read_varint(message, position)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, position = _read_varint(message, position)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise BadInputError(f"The SentencePiece model is damaged: wire type {kind} at byte {position}.")
        if size > len(message) - position:
            raise BadInputError(
                f"The SentencePiece model is cut or damaged: a field of {size} bytes at byte {position} of "
                f"{len(message)}."
            )
        yield key >> 3, message[position : position + size]
        position += size


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            break
        byte = message[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise BadInputError(f"The SentencePiece model is cut or damaged near byte {position}.")

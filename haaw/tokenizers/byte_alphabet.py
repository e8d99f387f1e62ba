"""The alphabet of byte-level BPE: one printable character for each of the 256 bytes.

Printable Latin-1 characters stand for themselves; the other bytes take the characters from U+0100 on, in
order (GPT-2, Radford et al. 2019, the published encoder).
"""


def _byte_of_char() -> dict[str, int]:
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in itself}
    for count, byte in enumerate(byte for byte in range(256) if byte not in set(itself)):
        alphabet[chr(0x100 + count)] = byte
    return alphabet


BYTE_OF_CHAR = _byte_of_char()
CHAR_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHAR.items()}


def alphabet_to_bytes(token: str) -> bytes:
    """The bytes that a token spells; a token with a character outside the alphabet is taken as plain text."""
    try:
        return bytes([BYTE_OF_CHAR[char] for char in token])
    except KeyError:
        return token.encode("utf-8", "replace")

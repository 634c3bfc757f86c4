"""Fields of protocol buffers, as SPU writes them."""


def bytes_field(field: int, content: bytes) -> bytes:
    """Return a field that holds bytes.

    >>> bytes_field(71, b"ab").hex()
    'ba04026162'
    """
    return bytes_head(field, len(content)) + content


def bytes_head(field: int, length: int) -> bytes:
    """Return what precedes the bytes of a field."""
    return varint(field << 3 | 2) + varint(length)


def number_field(field: int, value: int) -> bytes:
    """Return a field that holds a number."""
    return varint(field << 3) + varint(value)


def varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])

"""Frames as SPU's link sends them, made by hand for the tests of what checks them."""

import struct

SESSION = "0123456789abcdef" * 2
CHUNK = 1 << 20
SERVICE = b"org.interconnection.link.ReceiverService"


def varint(number):
    """Return a number in base 128, as protocol buffers write it."""
    content = b""
    while number >= 0x80:
        content += bytes([number & 0x7F | 0x80])
        number >>= 7
    return content + bytes([number])


def number_field(field, value):
    return varint(field << 3) + varint(value)


def bytes_field(field, content):
    return varint(field << 3 | 2) + varint(len(content)) + content


def call(service=SERVICE, method=b"Push"):
    return bytes_field(1, service) + bytes_field(2, method)


def request_meta(service=SERVICE, method=b"Push", compressed=0, correlation=7):
    return (
        bytes_field(1, call(service, method))
        + number_field(3, compressed)
        + number_field(4, correlation)
    )


def key_of(number, session=SESSION, way="0->1"):
    return f"{session}-0:P2P-{number}:{way}\x01\x02{number}".encode()


def push(key, value, rank=0, chunk=None):
    """Return the payload of a message; `chunk` is the length of the whole, and an offset."""
    content = number_field(1, rank) if rank else b""
    content += bytes_field(2, key) + bytes_field(3, value)
    if chunk is not None:
        length, offset = chunk
        place = number_field(1, length) + (number_field(2, offset) if offset else b"")
        content += number_field(4, 1) + bytes_field(5, place)
    return content


def chunks(key, content, rank=0):
    """Return the payloads of a message that is cut as SPU cuts it."""
    starts = range(0, len(content), CHUNK)
    return [
        push(key, content[start : start + CHUNK], rank, (len(content), start)) for start in starts
    ]


def receipt(number, rank=1):
    """Return the payload that says that a message was read."""
    return push(b"ACK\x01\x02", str(number).encode(), rank)


def answer(code=0, correlation=7, payload=b"\n\0"):
    meta = bytes_field(2, number_field(1, code)) + number_field(3, 0)
    return meta + number_field(4, correlation), payload


def frame(meta, payload):
    """Return a whole frame with its head."""
    head = struct.pack(">4sII", b"PRPC", len(meta) + len(payload), len(meta))
    return head + meta + payload

"""SPU's random generator: what each party draws from its seed, drawn again by the dealer.

Block i of a seed's stream is the AES-128 encryption, under the seed, of the
little-endian 128-bit number i. An array begins at a whole block, and the next
array at the block after its last.
"""

import hashlib

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

BLOCK_BYTES = 16
SEED_BYTES = 16


def blocks_of(length: int) -> int:
    """Return how many blocks an array of a length moves the counter.

    >>> blocks_of(60), blocks_of(64), blocks_of(65)
    (4, 4, 5)
    """
    return -(-length // BLOCK_BYTES)


def draw(seed: bytes, count: int, length: int) -> bytes:
    """Return the bytes of an array that begins at a block.

    >>> draw(bytes(16), 0, 4).hex()
    '66e94bd4'
    """
    numbers = np.zeros((blocks_of(length), 2), "<u8")
    numbers[:, 0] = np.arange(count, count + len(numbers), dtype=np.uint64)
    # counters must not repeat under one key, and in this generator they cannot
    encryptor = Cipher(algorithms.AES(seed), modes.ECB()).encryptor()
    return encryptor.update(numbers.tobytes())[:length]


def draw_bits(seeds: tuple[bytes, ...], count: int, number: int) -> np.ndarray:
    """Return random bits that no single party can predict, the same at every call.

    >>> draw_bits((bytes(16), bytes(16)), 5, 8).tolist()
    [0, 0, 1, 0, 1, 1, 0, 1]
    """
    label = b"mpcvit random bits" + count.to_bytes(8, "little")
    key = hashlib.sha256(label + b"".join(seeds)).digest()[:SEED_BYTES]
    stream = np.frombuffer(draw(key, 0, -(-number // 8)), np.uint8)
    return np.unpackbits(stream)[:number]

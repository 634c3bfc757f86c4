"""Shares as messages: each owner splits its own arrays, and sends a peer only the peer's part."""

import math
import secrets
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import spu
from spu import libspu

from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.protocols import Truncation
from mpcvit.dealer.generator import SEED_BYTES, blocks_of, draw
from mpcvit.dealer.ring import ring_of
from mpcvit.errors import UserError
from mpcvit.secure.errors import PartyError
from mpcvit.secure.parties.roles import Role
from mpcvit.secure.spu.link import Channel

Share = Any  # libspu.Share
Shape = tuple[int, ...]

_CHUNK_BYTES = 1 << 27  # SPU cuts longer shares
_RINGS = {64: libspu.FieldType.FM64, 128: libspu.FieldType.FM128}


def runtime_config(profile: Profile) -> Any:
    """Return SPU's own form of a profile."""
    config = libspu.RuntimeConfig(
        protocol=getattr(libspu.ProtocolKind, profile.protocol.name),
        field=_RINGS[profile.ring_bits],
        fxp_fraction_bits=profile.fraction_bits,
    )
    if profile.squares:  # exp is then (1 + y / 2)^2; see rewrite.py
        config.fxp_exp_mode = libspu.RuntimeConfig.ExpMode.EXP_TAYLOR
        config.fxp_exp_iters = 1
    config.trunc_allow_msb_error = profile.truncation is Truncation.LOCAL
    config.experimental_enable_colocated_optimization = profile.owned_weights
    return config


class Sharing:
    """Splits arrays into shares, hands them round, and puts them together again."""

    def __init__(self, channel: Channel, profile: Profile) -> None:
        self._channel = channel
        self._profile = profile
        self._io = spu.Io(len(channel.roles), runtime_config(profile))

    def give(
        self, arrays: Mapping[str, np.ndarray], *, owned: bool = False
    ) -> tuple[dict[str, Share], int]:
        """Send every peer its shares; give the own ones, and the bytes sent to one peer.

        Of an `owned` array the own share is all of it, and a peer's holds nothing.
        """
        owner = self._channel.number if owned else -1
        shares: dict[Role, dict[str, Share]] = {role: {} for role in self._channel.roles}
        for name, array in arrays.items():
            _require_range(name, array, self._profile)
            split = self._io.make_shares(
                np.asarray(array, np.float32), libspu.Visibility.VIS_SECRET, owner
            )
            for role, share in self._channel.by_role(split).items():
                shares[role][name] = share
        sent_bytes = 0
        for peer in self._channel.peers:
            message = pack(list(shares[peer].values()))
            sent_bytes = len(message)
            self._channel.send(peer, message)
        return shares[self._channel.role], sent_bytes

    def take(
        self, owner: Role, shapes: Mapping[str, Shape], *, owned: bool = False
    ) -> tuple[dict[str, Share], int]:
        """Receive the own shares of an owner's arrays, and how many bytes that took.

        Each share must be of the kind that `give` makes for an array of its shape.
        """
        number = self._channel.roles.index(owner) if owned else -1
        template = self._io.make_shares(
            np.zeros(1, np.float32), libspu.Visibility.VIS_SECRET, number
        )[self._channel.number]
        return self._receive(owner, {name: (shape, template) for name, shape in shapes.items()})

    def give_weights(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Share]:
        """Share arrays in the way that takes the fewest bytes; give the own shares."""
        if self._draws_weights:
            return self._give_by_seed(arrays)
        return self.give(arrays, owned=self._profile.owned_weights)[0]

    def take_weights(
        self, owner: Role, shapes: Mapping[str, Shape]
    ) -> tuple[dict[str, Share], int]:
        """Receive what `give_weights` sent, and how many bytes that took."""
        if self._draws_weights:
            return self._take_by_seed(owner, shapes)
        return self.take(owner, shapes, owned=self._profile.owned_weights)

    @property
    def _draws_weights(self) -> bool:
        return self._profile.protocol.shares_are_sums and not self._profile.owned_weights

    def _give_by_seed(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Share]:
        """Send every peer a seed from which it draws its shares; return the own shares.

        A peer's shares are as random as those of `give`, and the own ones make up for them.
        """
        number, ring = self._channel.number, ring_of(self._profile.ring_bits // 8)
        seeds = [secrets.token_bytes(SEED_BYTES) for _ in self._channel.peers]
        for peer, seed in zip(self._channel.peers, seeds, strict=True):
            self._channel.send(peer, seed)
        own, block = {}, 0
        for name, array in arrays.items():
            _require_range(name, array, self._profile)
            split = self._io.make_shares(
                np.asarray(array, np.float32), libspu.Visibility.VIS_SECRET
            )
            share, length = split[number], _bytes_of(split[number])
            total = ring.read(_content_of(share))
            for other in (*split[:number], *split[number + 1 :]):
                total = ring.add(total, ring.read(_content_of(other)))
            for seed in seeds:
                total = ring.subtract(total, ring.read(draw(seed, block, length)))
            own[name] = _filled(share.meta, total.tobytes())
            block += blocks_of(length)
        return own

    def _take_by_seed(
        self, owner: Role, shapes: Mapping[str, Shape]
    ) -> tuple[dict[str, Share], int]:
        """Draw the own shares of an owner's arrays, and say how many bytes that took."""
        seed = self._channel.receive(owner)
        if len(seed) != SEED_BYTES:
            raise PartyError(f"the {owner.value} sent malformed shares")
        template = self.make_up((1,))
        meta, width = _meta(template), _bytes_of(template)
        shares, block = {}, 0
        for name, shape in shapes.items():
            length = width * math.prod(shape)
            meta.shape.dims = list(shape)
            shares[name] = _filled(meta.SerializeToString(), draw(seed, block, length))
            block += blocks_of(length)
        return shares, len(seed)

    def _receive(
        self, owner: Role, expected: Mapping[str, tuple[Shape, Share]]
    ) -> tuple[dict[str, Share], int]:
        """Receive shares, and hold each to a shape and to the kind of a template."""
        message = self._channel.receive(owner)
        shares = unpack(message, owner)
        if len(shares) != len(expected):
            raise PartyError(f"the {owner.value} sent another number of shares")
        for share, (name, (shape, template)) in zip(shares, expected.items(), strict=True):
            if reason := _why_not_like(share, shape, template):
                raise PartyError(f"the {owner.value} sent a share of '{name}' {reason}")
        return dict(zip(expected, shares, strict=True)), len(message)

    def publish(self, array: np.ndarray) -> Share:
        """Return the own copy of what every party knows."""
        return self._io.make_shares(array, libspu.Visibility.VIS_PUBLIC)[self._channel.number]

    def make_up(self, shape: Shape) -> Share:
        """Return a share of nothing in particular, for what is run without secrets."""
        split = self._io.make_shares(np.zeros(shape, np.float32), libspu.Visibility.VIS_SECRET)
        return split[self._channel.number]

    def make_noise(self, shape: Shape) -> Share:
        """Return a share of numbers that are uniform in the ring, and that nobody knows.

        Each party draws its own share, and a secret is the sum of all shares.
        """
        noise = self.make_up(shape)
        return _filled(noise.meta, secrets.token_bytes(_bytes_of(noise)))

    def reveal_to(
        self, receiver: Role, share: Share, shape: Shape
    ) -> tuple[np.ndarray | None, int]:
        """Open a secret, the only place that does: only `receiver` gets the value.

        Every other party sends its share there and learns nothing. Also gives
        the bytes that passed.
        """
        channel = self._channel
        if channel.role is not receiver:
            message = pack([share])
            channel.send(receiver, message)
            return None, len(message)
        shares, received_bytes = {channel.role: share}, 0
        for peer in channel.peers:
            theirs, count = self._receive(peer, {"output": (shape, share)})
            shares[peer], received_bytes = theirs["output"], received_bytes + count
        return self._io.reconstruct(channel.in_order_of_parties(shares)), received_bytes


def pack(shares: Sequence[Share]) -> bytes:
    """Return a message: for each share the number of its pieces, then length and bytes of each."""
    parts: list[bytes] = []
    for share in shares:
        pieces = [share.meta, *share.share_chunks]
        parts.append(struct.pack("<I", len(pieces)))
        for piece in pieces:
            parts += [struct.pack("<Q", len(piece)), piece]
    return b"".join(parts)


def unpack(message: bytes, sender: Role) -> list[Share]:
    shares, place = [], 0

    def number(form: str) -> int:
        nonlocal place
        (value,) = struct.unpack_from(form, message, place)
        place += struct.calcsize(form)
        return value

    try:
        while place < len(message):
            pieces = []
            for _ in range(number("<I")):
                length = number("<Q")
                if length > len(message) - place:
                    raise struct.error
                pieces.append(message[place : place + length])
                place += length
            share = libspu.Share()
            share.meta, share.share_chunks = pieces[0], pieces[1:]
            shares.append(share)
    except (struct.error, IndexError) as error:
        raise PartyError(f"the {sender.value} sent malformed shares") from error
    return shares


def _why_not_like(share: Share, shape: Shape, template: Share) -> str:
    """Return how a share differs from what is expected, before SPU reads any of it."""
    meta, expected = _meta(share), _meta(template)
    if meta is None or expected is None or tuple(meta.shape.dims) != shape:
        return "of another shape than the program takes"
    for name in ("data_type", "visibility", "storage_type"):
        if getattr(meta, name) != getattr(expected, name):
            return f"of another {name.replace('_', ' ')}"
    length = math.prod(shape) * _bytes_of(template) // max(1, math.prod(expected.shape.dims))
    if not _are_chunks_of(share.share_chunks, length):
        return f"that does not hold {length} bytes"
    return ""


def _meta(share: Share) -> Any:
    meta = libspu.ValueMeta()  # type: ignore[reportCallIssue]
    return meta if meta.ParseFromString(share.meta) else None


def _bytes_of(share: Share) -> int:
    """Return how many bytes a share of this party's own making holds."""
    length = 0
    if share.share_chunks:
        for place, byte in enumerate(share.share_chunks[0][1:11]):  # the first field
            length |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                break
    return length


def _content_of(share: Share) -> bytes:
    """Return the numbers of a share of this party's own making."""
    heads = _chunk_heads(_bytes_of(share))
    return b"".join(
        chunk[len(head) :] for chunk, (head, _) in zip(share.share_chunks, heads, strict=True)
    )


def _filled(meta: bytes, content: bytes) -> Share:
    """Return a share of these numbers."""
    share, start = libspu.Share(), 0
    chunks = []
    for head, size in _chunk_heads(len(content)):
        chunks.append(head + content[start : start + size])
        start += size
    share.meta, share.share_chunks = meta, chunks
    return share


def _are_chunks_of(chunks: Sequence[bytes], length: int) -> bool:
    """Return whether chunks are just the ones into which SPU cuts an array of that length."""
    heads = _chunk_heads(length)
    return len(chunks) == len(heads) and all(
        len(chunk) == len(head) + size and chunk.startswith(head)
        for chunk, (head, size) in zip(chunks, heads, strict=True)
    )


def _chunk_heads(length: int) -> list[tuple[bytes, int]]:
    """Return what precedes the bytes of each chunk of an array, and how many bytes follow.

    A chunk is a protocol buffer: the array's length, its own offset unless zero, its bytes.
    """
    heads = []
    for offset in range(0, length, _CHUNK_BYTES):
        size = min(_CHUNK_BYTES, length - offset)
        head = number_field(1, length) + (number_field(2, offset) if offset else b"")
        heads.append((head + bytes_head(3, size), size))
    return heads


def _require_range(name: str, array: np.ndarray, profile: Profile) -> None:
    """Refuse what fixed point cannot hold, rather than let it wrap."""
    largest = float(np.abs(array).max(initial=0.0))
    if not largest < profile.magnitude_limit:  # also refuses NaN
        raise UserError(
            f"'{name}' reaches {largest:.3g}, but {profile.ring_bits} bits with "
            f"{profile.fraction_bits} fraction bits hold only up to "
            f"{profile.magnitude_limit:.3g}"
        )


def bytes_field(field: int, content: bytes) -> bytes:
    """Return a field of a protocol buffer that holds bytes.

    >>> bytes_field(71, b"ab").hex()
    'ba04026162'
    """
    return bytes_head(field, len(content)) + content


def bytes_head(field: int, length: int) -> bytes:
    """Return what precedes the bytes of a field."""
    return _varint(field << 3 | 2) + _varint(length)


def number_field(field: int, value: int) -> bytes:
    """Return a field of a protocol buffer that holds a number."""
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])

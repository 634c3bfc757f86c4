"""Shares as messages: each owner splits its own arrays, and sends a peer only the peer's part."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import spu
from spu import libspu

from mpcvit.errors import UserError
from mpcvit.profile import Profile, Protocol, Truncation
from mpcvit.runtime.errors import PartyError
from mpcvit.runtime.link import Channel
from mpcvit.runtime.roles import Role

Share = Any  # libspu.Share
Shape = tuple[int, ...]

_RINGS = {64: libspu.FieldType.FM64, 128: libspu.FieldType.FM128}
_PROTOCOLS = {
    Protocol.SEMI2K: libspu.ProtocolKind.SEMI2K,
    Protocol.CHEETAH: libspu.ProtocolKind.CHEETAH,
    Protocol.ABY3: libspu.ProtocolKind.ABY3,
}


def runtime_config(profile: Profile) -> Any:
    """SPU's own form of a profile."""
    config = libspu.RuntimeConfig(
        protocol=_PROTOCOLS[profile.protocol],
        field=_RINGS[profile.ring_bits],
        fxp_fraction_bits=profile.fraction_bits,
    )
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

    def take(self, owner: Role, shapes: Mapping[str, Shape]) -> tuple[dict[str, Share], int]:
        """Receive the own shares of an owner's arrays, and how many bytes that took."""
        message = self._channel.receive(owner)
        shares = unpack(message, owner)
        found = [_shape(share) for share in shares]
        if found != list(shapes.values()):
            raise PartyError(
                f"the {owner.value} sent shares of other shapes than the program takes"
            )
        return dict(zip(shapes, shares, strict=True)), len(message)

    def make_up(self, shape: Shape) -> Share:
        """A share of nothing in particular: for what is run without secrets."""
        split = self._io.make_shares(np.zeros(shape, np.float32), libspu.Visibility.VIS_SECRET)
        return split[self._channel.number]

    def reveal_to(
        self, receiver: Role, share: Share, shape: Shape
    ) -> tuple[np.ndarray | None, int]:
        """The single door from secret to public: only `receiver` gets the value.

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
            theirs, count = self.take(peer, {"output": shape})
            shares[peer], received_bytes = theirs["output"], received_bytes + count
        return self._io.reconstruct(channel.in_order_of_parties(shares)), received_bytes


def pack(shares: Sequence[Share]) -> bytes:
    """One message: for each share the number of its pieces, then length and bytes of each."""
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
        raise PartyError(f"the {sender.value} sent what are no shares") from error
    return shares


def _shape(share: Share) -> Shape:
    meta = libspu.ValueMeta()  # type: ignore[reportCallIssue]
    if not meta.ParseFromString(share.meta):
        return ()
    return tuple(meta.shape.dims)


def _require_range(name: str, array: np.ndarray, profile: Profile) -> None:
    """Refuse what fixed point cannot hold, rather than let it wrap."""
    largest = float(np.abs(array).max(initial=0.0))
    if not largest < profile.magnitude_limit:  # also refuses NaN
        raise UserError(
            f"'{name}' reaches {largest:.3g}, but {profile.ring_bits} bits with "
            f"{profile.fraction_bits} fraction bits hold only up to "
            f"{profile.magnitude_limit:.3g}"
        )

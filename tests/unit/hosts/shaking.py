"""A TLS handshake in memory."""

import contextlib
import ssl

from mpcvit.hosts.peer import peer_of


def shake(listening, dialling, host="localhost"):
    """Return who each end sees: the peer of the listening one, and that of the dialling one.

    Raises ssl.SSLError if either end refuses the other.
    """
    forth, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = listening.wrap_bio(forth, back, server_side=True)
    client = dialling.wrap_bio(back, forth, server_hostname=host)
    for _ in range(6):
        for end in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    with contextlib.suppress(ssl.SSLWantReadError):
        client.read()  # takes an alert that comes after the handshake
    return peer_of(server), peer_of(client)

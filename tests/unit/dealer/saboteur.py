"""What can go wrong on the way to a dealer, at will."""

import contextlib
import socket
import threading


class Saboteur:
    """Stands between party and dealer, and lets so many bytes of each answer through."""

    def __init__(self, address, allowances=(), *, stalls=False):
        self._target, self.allowances = address.split(":"), list(allowances)
        self.stalls, self._ended = stalls, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            allowance = self.allowances.pop(0) if self.allowances else 1 << 40
            host, port = self._target
            server = socket.create_connection((host, int(port)))
            threading.Thread(
                target=self._carry, args=(client, server, 1 << 40), daemon=True
            ).start()
            threading.Thread(
                target=self._carry, args=(server, client, allowance), daemon=True
            ).start()

    def _carry(self, source, target, allowance):
        try:
            while allowance > 0 and (piece := source.recv(min(65536, allowance))):
                target.sendall(piece)
                allowance -= len(piece)
            if allowance == 0 and self.stalls:
                self._ended.wait()
        except OSError:
            pass
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self):
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

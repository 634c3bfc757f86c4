"""What passes towards the model owner, seen by a wiretap."""

import socket
import threading

import numpy as np
import pytest

import mpcvit
from mpcvit.classifier import Classifier
from mpcvit.secure.parties import supervise as processes
from mpcvit.secure.parties.roles import Role
from mpcvit.secure.parties.sockets import dial, listen


class Wiretap:
    """Carries bytes to a party, and keeps a copy."""

    def __init__(self, target):
        self.heard = bytearray()
        self._target = target
        self.address = f"{target}.tap"
        self._server = listen(self.address)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client):
        while True:
            try:
                server = dial(self._target)
                break
            except OSError:
                threading.Event().wait(0.02)
        back = threading.Thread(target=self._carry, args=(server, client, None), daemon=True)
        back.start()
        self._carry(client, server, self.heard)
        back.join()
        client.close()
        server.close()

    def _carry(self, source, target, copy):
        try:
            while piece := source.recv(1 << 16):
                if copy is not None:
                    copy += piece
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        self._server.close()


@pytest.fixture
def listen_in(monkeypatch, checkpoint, nobody_left):
    """Run an image and give all that the model owner received."""

    def run(pixels):
        taps = []

        def addresses(listening, profile, stack):
            taps.append(Wiretap(listening[Role.MODEL_OWNER]))
            through = {**listening, Role.MODEL_OWNER: taps[0].address}
            return {Role.MODEL_OWNER: listening, Role.DATA_OWNER: through}

        monkeypatch.setattr(processes, "_addresses_by_role", addresses)
        result = mpcvit.run(checkpoint, pixels, "semi2k", reveal="logits", insecure=True)
        taps[0].close()
        return bytes(taps[0].heard), result

    return run


def test_the_model_owner_hears_nothing_of_the_image(listen_in, checkpoint, pixels):
    image = pixels[:1]
    heard, result = listen_in(image)
    again, _ = listen_in(image)
    other, _ = listen_in(255 - image)
    normalised = Classifier(checkpoint).preprocess(list(image))
    encoded = np.round(normalised.astype(np.float64) * 2**18).astype(np.int64)
    rows = [row for secret in (image, normalised, encoded) for row in secret.reshape(-1, 18)]
    for row in (*rows, *result.logits):
        assert row.tobytes() not in heard
    # the frames around the shares hold varying numbers of a few bytes each
    for one in (again, other):
        assert abs(len(one) - len(heard)) < 0.02 * len(heard)
    # nothing is a function of the image alone: no eight bytes of its share come twice
    pieces = {heard[place : place + 8] for place in range(len(heard) - 8)}
    repeated = sum(again[place : place + 8] in pieces for place in range(0, len(again) - 8, 8))
    fresh = sum(other[place : place + 8] in pieces for place in range(0, len(other) - 8, 8))
    assert abs(repeated - fresh) < 0.02 * len(again) / 8

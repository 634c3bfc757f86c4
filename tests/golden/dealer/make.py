"""What SPU 0.9.5 itself says and draws, for tests without SPU: python tests/golden/dealer/make.py

Two runtimes in one process multiply zeros, with all adjustments zero too. What
comes out is then c - a b: of numbers that SPU's own generator drew. Requests of
every kind are kept as SPU sent them.
"""

import base64
import json
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from spu import libspu

from mpcvit.artifacts.profile import load_profile
from mpcvit.dealer import SPU_VERSION
from mpcvit.dealer.framing import read_call
from mpcvit.dealer.keys import load_private_key, make_keys
from mpcvit.dealer.party.gateway import Gateway, zeros
from mpcvit.secure.spu.compile import compile_function
from mpcvit.secure.spu.engine import DealerSettings, Engine, run_in_threads

HERE = Path(__file__).parent
PROFILE = load_profile("semi2k-dealer")


class _Listening(Gateway):
    """Keeps requests as they came."""

    def __init__(self):
        self.heard = []
        super().__init__(lambda call: zeros(call.step))

    def _pieces(self, path, body):
        self.heard.append((path, body))
        return super()._pieces(path, body)


def run(key, function, array):
    """What a function of zeros gives with zeros for adjustments, and what was asked for."""
    code = compile_function(function, array)
    heard, barrier, shares = [], threading.Barrier(2), {}

    def take_part(channel):
        channel.counts_costs = False
        gateway = _Listening()
        engine = Engine(
            channel, PROFILE, DealerSettings(gateway=gateway, public_pem=key.public.pem)
        )
        if channel.number == 0:
            split = engine.sharing._io.make_shares(array, libspu.Visibility.VIS_SECRET)
            shares["x"] = split
            heard.append(gateway.heard)
        barrier.wait()
        engine.runtime.set_var("x", shares["x"][channel.number])
        executable = libspu.Executable(
            name="golden", input_names=["x"], output_names=["y"], code=code
        )
        engine.runtime.run(executable)
        shares[channel.number] = engine.runtime.get_var("y")
        barrier.wait()
        return engine.sharing._io.reconstruct([shares[0], shares[1]])

    results = run_in_threads(PROFILE, take_part)
    return next(iter(results.values())), heard[0]


def everything(x):
    found = [jax.nn.relu(x), x @ x, x * x, x == 1.0, jax.lax.rsqrt(x), jnp.roll(x, 1) * x]
    return jnp.concatenate([jnp.ravel(one).astype(jnp.float32) for one in found])


def main():
    if not (HERE / "key").exists():
        make_keys(HERE / "key")
    key = load_private_key(HERE / "key")
    product, asked = run(key, lambda x: x * jnp.roll(x, 1), np.zeros(5, np.int64))
    ((path, body),) = asked
    call = read_call(path, body)
    _, others = run(key, everything, np.zeros((3, 3), np.float32))
    first = {path: body.decode() for path, body in reversed(others)}
    document = {
        "spu": SPU_VERSION,
        "seeds": {
            base64.b64encode(sealed).decode(): key.decrypt(sealed).hex() for sealed in call.seeds
        },
        "product": {
            "request": body.decode(),
            "path": path,
            "result": [int(number) for number in product],
        },
        "requests": dict(sorted(first.items())),
    }
    (HERE / "spu.json").write_text(json.dumps(document, indent=1) + "\n")
    print(sorted(path.rpartition("/")[2] for path in first))


if __name__ == "__main__":
    main()

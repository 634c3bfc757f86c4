"""Jobs for tests: seeds, encrypted as SPU encrypts them, and a small script."""

import secrets

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import padding

from mpcvit.dealer.jobs import Job, JobOutline
from mpcvit.dealer.ledger import Ledger
from mpcvit.dealer.operations import adjust
from mpcvit.dealer.script import Kind, Script, Step

SCRIPT = Script(
    (
        Step(kind=Kind.MUL, width=8, shape=(5,)),
        Step(kind=Kind.DOT, width=16, shape=(3, 5, 7)),
        Step(kind=Kind.AND, width=16, shape=(11,)),
        Step(kind=Kind.RANDOM_BIT, width=8, shape=(13,)),
    )
)


def seal(key, seed):
    """A seed, encrypted to the dealer."""
    public = serialization.load_pem_public_key(key.public.pem.encode())
    return public.encrypt(seed, padding.PKCS1v15())


def new_seeds():
    return tuple(secrets.token_bytes(16) for _ in range(2))


def make_job(key, seeds=None, sealed=None, script=SCRIPT, times=2, start=10):
    sealed = sealed or tuple(seal(key, seed) for seed in seeds or new_seeds())
    return Job(seeds=sealed, start=start, plan=((script, times),), key=key.public.fingerprint)


def outline(job):
    """A job as a dealer's reader outlines it."""
    return JobOutline(
        document=job.to_bytes(),
        digest=job.digest,
        inferences=job.inferences,
        seeds=job.seeds,
        key=job.key,
        spu=job.spu,
    )


def expected(seeds, script=SCRIPT, start=10):
    """All of an inference's material."""
    found = b""
    ledger = Ledger(start)
    for step in script.steps:
        found += adjust(step, seeds, ledger.enter(step))
    return found


def fetch(client, job, inference=0):
    script, _ = job.inference(inference)
    content = bytearray(script.answer_bytes)
    client.fetch(job, inference, memoryview(content), lambda done: None)
    return bytes(content)


def authorise(dealer, job):
    for party in ("client", "server"):
        dealer.client(party).authorise(job)

"""What a dealer costs: its share of an inference, and how many it can serve."""

import json
import secrets
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.protocols import Dealer
from mpcvit.artifacts.record import Reveal, RunRecord
from mpcvit.bench.networks import random_images
from mpcvit.bench.rows import Row, row_context, spread
from mpcvit.dealer import ADJUSTING, PARTIES
from mpcvit.dealer.generator import SEED_BYTES
from mpcvit.dealer.jobs import Job
from mpcvit.dealer.keys import PUBLIC_FILE, load_public_key
from mpcvit.dealer.party.client import DealerClient
from mpcvit.dealer.script import Script
from mpcvit.errors import UserError
from mpcvit.lowering.program import Model
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.progress import Progress, counted
from mpcvit.secure.card import ModelCard, settled
from mpcvit.secure.dealing.local_dealer import LocalDealer
from mpcvit.secure.dealing.rehearsal import scripts_of
from mpcvit.secure.parties.roles import Role
from mpcvit.secure.run import run, with_engine_of
from mpcvit.secure.spu.compile import compile_network

_JOBS = 6  # that a dealer serves alone


def bench_dealer(
    models: Sequence[Model],
    profile: Profile,
    *,
    rounds: int,
    workers: Sequence[int],
    progress: Progress,
) -> list[Row]:
    """Run each model with a dealer and with the first party, in turns; then run dealers alone."""
    if profile.dealer is not Dealer.THIRD_PARTY:
        raise UserError("the profile must have a dealer, as semi2k-dealer-wan has")
    rows: list[Row] = []
    for model in models:
        form = "plain" if isinstance(model, Checkpoint) else "lowered"
        settings = settled(with_engine_of(model, profile), ModelCard.of(model), runs=1)
        profiles = {
            "first-party": replace(settings, dealer=Dealer.FIRST_PARTY_INSECURE),
            "third-party": settings,
        }
        records: dict[str, list[RunRecord]] = {name: [] for name in profiles}
        for _ in counted(f"{form} rounds", range(rounds), progress):
            for name, own in profiles.items():
                image = random_images(model.model)
                result = run(model, image, own, reveal="logits", insecure=True)
                records[name].append(result.record)
        common = {**_EMPTY, "form": form, "architecture": model.architecture.digest()}
        for name, own in profiles.items():
            online = _online(name, records[name], records["first-party"])
            rows.append({**common, **online, **row_context(model.model, own)})
        for count in counted(f"{form} dealers", workers, progress):
            card = ModelCard.of(model, Reveal.LOGITS)
            alone = _throughput(card, settings, workers=count)
            rows.append({**common, **alone, **row_context(model.model, settings)})
    return rows


_EMPTY = dict.fromkeys(
    (
        *("form", "architecture"),
        *("what", "dealer", "runs", "online_s", "fastest_s", "slowest_s", "of_first_party"),
        *("exchanges", "sent_mb", "offline_mb", "offline_s", "held_mb", "peak_mb"),
        *("workers", "jobs", "seconds", "dealer_cpu_s_per_job", "jobs_per_minute"),
        "jobs_per_core_minute",
    ),
    "",
)


def _online(name: str, records: list[RunRecord], first_party: list[RunRecord]) -> Row:
    seconds, first_s = ([own.measured_s for own in runs] for runs in (records, first_party))
    offline = [record.offline for record in records if record.offline is not None]
    row = {
        "what": "inference",
        "dealer": name,
        "runs": len(records),
        **spread(seconds, median="online_s", of_first_party=first_s),
        "exchanges": records[0].exchanges,
        "sent_mb": round(records[0].sent_bytes / 1e6, 3),
        "peak_mb": round(records[-1].peak_bytes[Role.MODEL_OWNER.value] / 1e6),
    }
    if offline:
        row |= {
            "offline_mb": round(offline[0].received_bytes / 1e6, 3),
            "offline_s": round(statistics.median(one.fetch_s for one in offline), 3),
            "held_mb": round(offline[0].held_bytes / 1e6, 3),
        }
    return row


def _throughput(card: ModelCard, profile: Profile, *, workers: int) -> Row:
    """Time jobs of one inference each, for as many parties at once as there are workers."""
    with (
        tempfile.TemporaryDirectory(prefix="mpcvit-") as name,
        LocalDealer(Path(name) / "dealer", workers=workers) as dealer,
    ):
        public = load_public_key(Path(name) / "dealer" / "keys" / PUBLIC_FILE)
        script = scripts_of(compile_network(card, profile, 1), profile).inference
        endpoints = zip(PARTIES, dealer.places().values(), strict=True)
        clients = {party: endpoint.client(patience_s=60.0) for party, endpoint in endpoints}
        key = serialization.load_pem_public_key(public.pem.encode())
        assert isinstance(key, rsa.RSAPublicKey)
        made = [_job(script, key, public.fingerprint) for _ in range(_JOBS)]
        started = time.perf_counter()
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda index: _ask(clients, made[index::workers]), range(workers)))
        seconds = time.perf_counter() - started
        totals = json.loads(clients[ADJUSTING].metrics())
    cpu_s = totals["cpu_seconds"] / _JOBS
    return {
        "what": "dealer alone",
        "dealer": "third-party",
        "workers": workers,
        "jobs": _JOBS,
        "offline_mb": round(script.answer_bytes / 1e6, 3),
        "seconds": round(seconds, 2),
        "dealer_cpu_s_per_job": round(cpu_s, 3),
        "jobs_per_minute": round(60 * _JOBS / seconds, 1),
        "jobs_per_core_minute": round(60 / cpu_s, 1),
    }


def _ask(clients: dict[str, DealerClient], jobs: list[Job]) -> None:
    for job in jobs:
        for client in clients.values():
            client.authorise(job)
        script, _ = job.inference(0)
        content = memoryview(bytearray(script.answer_bytes))
        clients[ADJUSTING].fetch(job, 0, content, lambda done: None)


def _job(script: Script, key: rsa.RSAPublicKey, fingerprint: str) -> Job:
    sealed = tuple(
        key.encrypt(secrets.token_bytes(SEED_BYTES), padding.PKCS1v15()) for _ in PARTIES
    )
    return Job(seeds=sealed, start=0, plan=((script, 1),), key=fingerprint)

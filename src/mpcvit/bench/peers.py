"""The same network on several engines, one after the other, through the same emulated line."""

import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from flax.traverse_util import flatten_dict
from safetensors.numpy import save_file

from mpcvit.artifacts.config import Activation, ModelConfig, NormForm
from mpcvit.artifacts.profile import NetworkLink, Profile
from mpcvit.artifacts.record import RunRecord
from mpcvit.bench.crypten_party import IMAGE, Outcome, Task, cut_patches
from mpcvit.bench.lowered import lower_like
from mpcvit.bench.networks import paper_networks, random_checkpoint, random_images
from mpcvit.bench.rows import Row, row_context
from mpcvit.classifier import Classifier
from mpcvit.codec import decode, encode
from mpcvit.errors import UserError
from mpcvit.lowering.program import PublicProgram
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.progress import Progress, counted
from mpcvit.secure.parties.service_process import ServiceProcess
from mpcvit.secure.parties.sockets import unix_address
from mpcvit.secure.parties.wan import Relay, Route
from mpcvit.secure.run import run

NETWORKS = ("softmax", "relu_softmax", "scaling")
MPCVIT, SPU, CRYPTEN = "mpcvit, lowered", "SPU, as written", "CrypTen, as written"
INSTALL_CRYPTEN = (
    "CrypTen's rows need two packages: run pip install torch omegaconf, "
    "and then pip install --no-deps crypten"
)
_CRYPTEN_TRUST = "INSECURE dealer: the model owner makes the triples, and could read every image"


def is_crypten_there() -> bool:
    return all(importlib.util.find_spec(name) for name in ("torch", "omegaconf", "crypten"))


def bench_peers(
    models: Mapping[str, ModelConfig],
    dealer_profile: Profile,
    first_party_profile: Profile,
    references: Sequence[PublicProgram],
    *,
    networks: Sequence[str],
    progress: Progress,
) -> list[Row]:
    """Return a row per shape, network and engine, for one image of a short session.

    CrypTen's dealer is the model owner. SPU runs in the same way (`first_party_profile`).
    Our lowered program runs with a third party as its dealer. The error is the largest
    distance of a logit from plaintext; lowered networks borrow their approximations from
    trained ones, and so have none.
    """
    work = [(shape, name) for shape in models for name in networks]
    rows: list[Row] = []
    for shape, name in counted("networks", work, progress):
        model = models[shape]
        checkpoint = random_checkpoint(model, paper_networks(model)[name])
        image = random_images(model)
        classifier = Classifier(checkpoint)
        expected = classifier(classifier.preprocess(list(image)))
        program = lower_like(references, model, checkpoint.architecture, dealer_profile)
        ours = run(program, image, dealer_profile).record
        spu = run(checkpoint, image, first_party_profile, reveal="logits", insecure=True)
        outcomes = {
            MPCVIT: _outcome(ours, None),
            SPU: _outcome(spu.record, np.asarray(spu.logits)),
        }
        if is_crypten_there():
            network = first_party_profile.network
            outcomes[CRYPTEN] = run_crypten(checkpoint, image, name, network)
        for engine, outcome in outcomes.items():
            profile = ours.profile if engine == MPCVIT else first_party_profile
            costs = _beside(outcome, outcomes[SPU], expected)
            context = row_context(model, profile)
            if engine == CRYPTEN:
                context |= {"protocol": "CrypTen 0.4.1", "ring_bits": 64, "fraction_bits": 16}
                context["warning"] = _CRYPTEN_TRUST
            trusted = {"trusted": context["warning"] or profile.trust}
            known = {"config": shape, "network": name, "engine": engine}
            rows.append({**known, **costs, **trusted, **context})
    return rows


def _outcome(record: RunRecord, logits: np.ndarray | None) -> Outcome:
    """Return a run of ours as CrypTen's party describes its own."""
    return Outcome(
        seconds=record.measured_s,
        exchanges=record.exchanges,
        sent_bytes=record.sent_bytes,
        logits=[] if logits is None else logits.flatten().tolist(),
    )


def _beside(outcome: Outcome, spu: Outcome, expected: np.ndarray) -> Row:
    """Return the columns of a cost, with its ratios to SPU's."""
    error = np.abs(np.asarray(outcome.logits) - expected).max() if outcome.logits else None
    return {
        "measured_s": round(outcome.seconds, 3),
        "sent_mb": round(outcome.sent_bytes / 1e6, 3),
        "exchanges": outcome.exchanges,
        "s_of_spu": round(outcome.seconds / spu.seconds, 3),
        "mb_of_spu": round(outcome.sent_bytes / spu.sent_bytes, 3),
        "rounds_of_spu": round(outcome.exchanges / spu.exchanges, 3),
        "logit_error": "" if error is None else round(float(error), 5),
    }


def run_crypten(
    checkpoint: Checkpoint, image: np.ndarray, attention: str, network: NetworkLink
) -> Outcome:
    """Return what CrypTen takes for one image, in two processes with a relay between them."""
    model = checkpoint.model
    if model.norm is not NormForm.LAYER or model.activation is not Activation.GELU:
        raise UserError("CrypTen runs networks with layer norms and GeLU here, and no others")
    weights = flatten_dict(checkpoint.parameters, sep="/")
    tensors = {name: np.asarray(array) for name, array in weights.items()}
    (pixels,) = Classifier(checkpoint).preprocess(list(image))
    tensors[IMAGE] = np.ascontiguousarray(cut_patches(model, pixels))
    with tempfile.TemporaryDirectory(prefix="mpcvit-") as name:
        folder = Path(name)
        save_file(tensors, folder / "arrays.safetensors")
        route = Route(dialler="client", dialled="server", target=unix_address(folder / "server"))

        def party(rank: int, address: str) -> ServiceProcess:
            arrays, shape = str(folder / "arrays.safetensors"), encode(model)
            task = Task(rank=rank, address=address, arrays=arrays, attention=attention, model=shape)
            return ServiceProcess(
                "mpcvit.bench.crypten_party",
                what=f"CrypTen's party {rank}",
                request=asdict(task),
                environment={"PYTHONWARNINGS": "ignore"},
            )

        with (
            party(0, route.target),
            Relay(network, [route]) as relay,
            party(1, relay.addresses[route]) as client,
        ):
            return decode(Outcome, client.answer, "the outcome of CrypTen")

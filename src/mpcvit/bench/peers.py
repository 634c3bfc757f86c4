"""The same network on several engines, one after the other, through the same emulated line."""

import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from safetensors.numpy import save_file

from mpcvit.artifacts.config import Activation, ModelConfig, NormForm
from mpcvit.artifacts.profile import NetworkLink, Profile
from mpcvit.bench.crypten_party import IMAGE, Outcome, Task, cut_patches
from mpcvit.bench.lowered import Progress, Row, lower_with_plan, plan_for
from mpcvit.bench.networks import paper_networks, random_checkpoint, random_images
from mpcvit.bench.paper_tables import row_context
from mpcvit.codec import decode, encode
from mpcvit.errors import UserError
from mpcvit.lowering.engine import choose_engine
from mpcvit.lowering.program import PublicProgram
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.model.vit import ViT
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
    for index, (shape, name) in enumerate(work):
        model = models[shape]
        checkpoint = random_checkpoint(model, paper_networks(model)[name])
        image = random_images(model)
        expected = _plaintext(checkpoint, image)
        program = lower_with_plan(
            plan_for(checkpoint.architecture, references),
            model,
            checkpoint.architecture,
            choose_engine(dealer_profile),
        )
        record = run(program, image, dealer_profile).record
        own = {"exchanges": record.exchanges, "sent_mb": record.sent_bytes / 1e6}
        found = {MPCVIT: {**own, "measured_s": record.measured_s, "logit_error": None}}
        result = run(checkpoint, image, first_party_profile, reveal="logits", insecure=True)
        record = result.record
        own = {"exchanges": record.exchanges, "sent_mb": record.sent_bytes / 1e6}
        error = float(np.abs(np.asarray(result.logits) - expected).max())
        found[SPU] = {**own, "measured_s": record.measured_s, "logit_error": error}
        if is_crypten_there():
            outcome = run_crypten(checkpoint, image, name, first_party_profile.network)
            found[CRYPTEN] = {
                "exchanges": outcome.exchanges,
                "sent_mb": outcome.sent_bytes / 1e6,
                "measured_s": outcome.seconds,
                "logit_error": float(np.abs(outcome.logits - expected).max()),
            }
        rows += _beside(shape, name, found, model, dealer_profile, first_party_profile)
        progress("networks", index + 1, len(work))
    return rows


def _beside(
    shape: str,
    network: str,
    found: Mapping[str, Row],
    model: ModelConfig,
    dealer_profile: Profile,
    first_party_profile: Profile,
) -> list[Row]:
    """Return the rows of one network, with ratios to SPU's."""
    spu, rows = found[SPU], []
    for engine, cost in found.items():
        profile = dealer_profile if engine == MPCVIT else first_party_profile
        context = row_context(model, profile)
        if engine == CRYPTEN:
            context |= {"protocol": "CrypTen 0.4.1", "ring_bits": 64, "fraction_bits": 16}
            context["warning"] = _CRYPTEN_TRUST
        ratios = {
            f"{name}_of_spu": round(cost[column] / spu[column], 3)
            for name, column in (("s", "measured_s"), ("mb", "sent_mb"), ("rounds", "exchanges"))
        }
        error = cost["logit_error"]
        rows.append(
            {
                "config": shape,
                "network": network,
                "engine": engine,
                "measured_s": round(cost["measured_s"], 3),
                "sent_mb": round(cost["sent_mb"], 3),
                "exchanges": cost["exchanges"],
                **ratios,
                "logit_error": "" if error is None else round(error, 5),
                "trusted": context["warning"] or profile.trust,
                **context,
            }
        )
    return rows


def run_crypten(
    checkpoint: Checkpoint, image: np.ndarray, attention: str, network: NetworkLink
) -> Outcome:
    """Return what CrypTen takes for one image, in two processes with a relay between them."""
    model = checkpoint.model
    if model.norm is not NormForm.LAYER or model.activation is not Activation.GELU:
        raise UserError("CrypTen runs networks with layer norms and GeLU here, and no others")
    weights = flatten_dict(checkpoint.parameters, sep="/")
    arrays = {name: np.asarray(array) for name, array in weights.items()}
    arrays[IMAGE] = np.ascontiguousarray(cut_patches(model, _pixels(checkpoint, image)[0]))
    with tempfile.TemporaryDirectory(prefix="mpcvit-") as name:
        folder = Path(name)
        save_file(arrays, folder / "arrays.safetensors")
        route = Route(dialler="client", dialled="server", target=unix_address(folder / "server"))

        def party(rank: int, address: str) -> ServiceProcess:
            task = Task(
                rank=rank,
                address=address,
                arrays=str(folder / "arrays.safetensors"),
                attention=attention,
                model=encode(model),
            )
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


def _pixels(checkpoint: Checkpoint, image: np.ndarray) -> np.ndarray:
    mean, std = np.asarray(checkpoint.data.mean), np.asarray(checkpoint.data.std)
    return ((image / 255 - mean) / std).astype(np.float32)


def _plaintext(checkpoint: Checkpoint, image: np.ndarray) -> Any:
    network = ViT(checkpoint.model, checkpoint.architecture)
    pixels = jnp.asarray(_pixels(checkpoint, image))
    return np.asarray(network.apply({"params": checkpoint.parameters}, pixels, train=False)[0])

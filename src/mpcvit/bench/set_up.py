"""What a session takes before its first image: at first, and again."""

import resource
import tempfile
from collections.abc import Sequence

from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.profile import Profile
from mpcvit.bench.lowered import Progress, Row, lower_with_plan, plan_for
from mpcvit.bench.networks import paper_networks, random_checkpoint, random_images
from mpcvit.bench.paper_tables import row_context
from mpcvit.bench.threads import in_environment
from mpcvit.lowering.engine import choose_engine, with_engine
from mpcvit.lowering.program import Model, PublicProgram, SecureProgram
from mpcvit.secure.run import run
from mpcvit.storage import CACHE_VARIABLE


def bench_set_up(
    model: ModelConfig,
    profile: Profile,
    references: Sequence[PublicProgram],
    *,
    networks: Sequence[str],
    forms: Sequence[str],
    progress: Progress,
) -> list[Row]:
    """Return two rows per network and form: with an empty cache, and with a full one.

    No program carries a script, so the first run rehearses it too.
    """
    work = [(name, form) for name in networks for form in forms]
    rows: list[Row] = []
    for index, (name, form) in enumerate(work):
        network = _network(model, profile, references, name, form)
        engine = network.engine if isinstance(network, SecureProgram) else None
        context = row_context(model, with_engine(profile, engine))
        with (
            tempfile.TemporaryDirectory() as folder,
            in_environment(CACHE_VARIABLE, folder),
        ):
            for place, cache in enumerate(("empty", "full")):
                row = {"network": name, "form": form, "cache": cache}
                rows.append({**row, **_measure(network, profile), **context})
                progress("sessions", 2 * index + place + 1, 2 * len(work))
    return rows


def _network(
    model: ModelConfig,
    profile: Profile,
    references: Sequence[PublicProgram],
    name: str,
    form: str,
) -> Model:
    architecture = paper_networks(model)[name]
    if form == "plain":
        return random_checkpoint(model, architecture)
    plan = plan_for(architecture, references)
    return lower_with_plan(plan, model, architecture, choose_engine(profile))


def _measure(network: Model, profile: Profile) -> Row:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    record = run(network, random_images(network.model, 1), profile, insecure=True).record
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    set_up, image = record.set_up, record.batches[0].total
    return {
        "set_up_s": round(set_up.seconds, 2),
        "start_s": round(set_up.start_s, 2),
        "compile_s": round(set_up.compile_s, 2),
        "weights_s": round(set_up.weights_s, 2),
        "image_s": round(image.seconds, 2),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "exchanges": image.exchanges,
        "sent_mb": round(image.sent_bytes / 1e6, 1),
        "dealt_mb": round(record.offline.received_bytes / 1e6, 1) if record.offline else "",
        "peak_mb": round(max(record.peak_bytes.values()) / 1e6),
    }

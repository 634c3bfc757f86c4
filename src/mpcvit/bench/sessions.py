"""What sessions take beside what was forecast, with an empty cache, and with fewer threads."""

import os
import resource
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product

from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.profile import Profile
from mpcvit.bench.lowered import lower_like
from mpcvit.bench.networks import paper_networks, random_checkpoint, random_images
from mpcvit.bench.rows import Row, row_context, spread
from mpcvit.cores import THREADS_VARIABLE, threads_of_party
from mpcvit.cost.estimate import forecast_for
from mpcvit.errors import UserError
from mpcvit.lowering.program import Model, PublicProgram
from mpcvit.progress import Progress, counted
from mpcvit.secure.card import LEAST_RUNS
from mpcvit.secure.parties.roles import ROLES
from mpcvit.secure.run import run, with_engine_of
from mpcvit.storage import CACHE_VARIABLE

FORMS = ("lowered", "plain")
_THREADS_OF_SPU = 4  # that SPU starts for every product unless the limit is lower


def bench_forecast(
    models: Mapping[str, ModelConfig],
    profile: Profile,
    references: Sequence[PublicProgram],
    *,
    networks: Sequence[str],
    forms: Sequence[str],
    batch_size: int,
    progress: Progress,
) -> list[Row]:
    """Return a row per shape, network and form: what one batch was forecast to take, and took.

    Programs carry no script, so that parties rehearse, which takes the most memory.
    """
    work = list(product(models, networks, forms))
    rows: list[Row] = []
    for shape, name, form in counted("runs", work, progress):
        model = models[shape]
        architecture, lowered = paper_networks(model)[name], form == "lowered"
        expected = forecast_for(
            model, architecture, profile, lowered=lowered, batch_size=batch_size
        )
        if expected is None:
            raise UserError(f"there is no forecast for {profile.protocol.name} or this shape")
        network = _network(model, profile, references, name, form)
        images = random_images(model, batch_size)
        settings = {"batch_size": batch_size, "insecure": True, "ignore_memory": True}
        record = run(network, images, profile, **settings).record
        peaks = {role.replace(" ", "_"): peak for role, peak in record.peak_bytes.items()}
        rows.append(
            {
                "config": shape,
                "network": name,
                "form": form,
                "batch": batch_size,
                "exchanges": record.exchanges,
                "forecast_exchanges": expected.exchanges,
                "sent_mb": round(record.sent_bytes / 1e6, 1),
                "forecast_mb": round(expected.sent_bytes / 1e6, 1),
                "compute_s": round(record.compute_s, 2),
                "forecast_compute_s": round(expected.compute_s, 2),
                "measured_s": round(record.measured_s, 2),
                "forecast_s": round(expected.seconds, 2),
                **{f"{role}_mb": round(peak / 1e6) for role, peak in peaks.items()},
                "forecast_memory_mb": round(expected.memory_bytes / 1e6),
                "memory_ratio": round(expected.memory_bytes / max(peaks.values()), 3),
                **row_context(model, record.profile),
            }
        )
    return rows


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
    rows: list[Row] = []
    for name, form in counted("networks", list(product(networks, forms)), progress):
        network = _network(model, profile, references, name, form)
        context = row_context(model, with_engine_of(network, profile))
        with tempfile.TemporaryDirectory() as folder, _in_environment(CACHE_VARIABLE, folder):
            for cache in ("empty", "full"):
                row = {"network": name, "form": form, "cache": cache}
                rows.append({**row, **_measure_session(network, profile), **context})
    return rows


def bench_threads(
    model: ModelConfig,
    profile: Profile,
    references: Sequence[PublicProgram],
    *,
    networks: Sequence[str],
    rounds: int,
    progress: Progress,
) -> list[Row]:
    """Return a row per network and limit: SPU's four threads, and those that we allow.

    Both run in turns. Seconds are the median of the last image of each session.
    """
    limits = {"spu": _THREADS_OF_SPU, "mpcvit": threads_of_party(len(ROLES[profile.protocol]))}
    rows: list[Row] = []
    for name in networks:
        program = lower_like(references, model, paper_networks(model)[name], profile)
        seconds: dict[str, list[float]] = {limit: [] for limit in limits}
        for _ in counted(f"{name} rounds", range(rounds), progress):
            for limit, threads in limits.items():
                with _in_environment(THREADS_VARIABLE, str(threads)):
                    images = random_images(model, LEAST_RUNS)
                    record = run(program, images, profile, batch_size=1, insecure=True).record
                seconds[limit].append(record.batches[-1].total.seconds)
        rows += [
            {
                "network": name,
                "limit": limit,
                "threads": threads,
                **spread(seconds[limit], of_spu=seconds["spu"]),
                **row_context(model, program.engine.apply(profile)),
            }
            for limit, threads in limits.items()
        ]
    return rows


def _network(
    model: ModelConfig, profile: Profile, references: Sequence[PublicProgram], name: str, form: str
) -> Model:
    architecture = paper_networks(model)[name]
    if form == "plain":
        return random_checkpoint(model, architecture)
    return lower_like(references, model, architecture, profile)


def _measure_session(network: Model, profile: Profile) -> Row:
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


@contextmanager
def _in_environment(variable: str, value: str) -> Iterator[None]:
    """Set a variable that parties inherit."""
    before = os.environ.get(variable)
    os.environ[variable] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before

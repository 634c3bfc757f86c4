"""What the limit on a party's threads is worth."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median

from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.profile import Profile
from mpcvit.bench.lowered import Progress, Row, lower_with_plan, plan_for
from mpcvit.bench.networks import paper_networks, random_images
from mpcvit.bench.paper_tables import row_context
from mpcvit.cores import THREADS_VARIABLE, threads_of_party
from mpcvit.lowering.engine import choose_engine
from mpcvit.lowering.program import PublicProgram
from mpcvit.secure.card import LEAST_RUNS
from mpcvit.secure.parties.roles import ROLES
from mpcvit.secure.run import run

_THREADS_OF_SPU = 4  # that SPU starts for every product unless the limit is lower


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
    for index, name in enumerate(networks):
        architecture = paper_networks(model)[name]
        plan = plan_for(architecture, references)
        program = lower_with_plan(plan, model, architecture, choose_engine(profile))
        seconds: dict[str, list[float]] = {limit: [] for limit in limits}
        for turn in range(rounds):
            for limit, threads in limits.items():
                with in_environment(THREADS_VARIABLE, str(threads)):
                    images = random_images(model, LEAST_RUNS)
                    record = run(program, images, profile, batch_size=1, insecure=True).record
                seconds[limit].append(record.batches[-1].total.seconds)
            progress("rounds", index * rounds + turn + 1, len(networks) * rounds)
        spu_s = median(seconds["spu"])
        rows += [
            {
                "network": name,
                "limit": limit,
                "threads": limits[limit],
                "median_s": round(median(found), 3),
                "fastest_s": round(min(found), 3),
                "slowest_s": round(max(found), 3),
                "of_spu": round(median(found) / spu_s, 3),
                **row_context(model, program.engine.apply(profile)),
            }
            for limit, found in seconds.items()
        ]
    return rows


@contextmanager
def in_environment(variable: str, value: str) -> Iterator[None]:
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

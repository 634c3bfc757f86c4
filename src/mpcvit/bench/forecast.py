"""Forecasts of private runs beside what the runs took."""

from collections.abc import Mapping, Sequence

from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.profile import Profile
from mpcvit.bench.lowered import Progress, Row, lower_with_plan, plan_for
from mpcvit.bench.networks import paper_networks, random_checkpoint, random_images
from mpcvit.bench.paper_tables import row_context
from mpcvit.cost.forecast import forecast_for
from mpcvit.errors import UserError
from mpcvit.lowering.engine import choose_engine
from mpcvit.lowering.program import PublicProgram
from mpcvit.secure.run import run

FORMS = ("lowered", "plain")


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
    work = [(shape, name, form) for shape in models for name in networks for form in forms]
    rows: list[Row] = []
    for index, (shape, name, form) in enumerate(work):
        model, architecture = models[shape], paper_networks(models[shape])[name]
        expected = forecast_for(
            model, architecture, profile, lowered=form == "lowered", batch_size=batch_size
        )
        if expected is None:
            raise UserError(f"there is no forecast for {profile.protocol.name} or this shape")
        if form == "lowered":
            plan, engine = plan_for(architecture, references), choose_engine(profile)
            network = lower_with_plan(plan, model, architecture, engine)
        else:
            network = random_checkpoint(model, architecture)
        images = random_images(model, batch_size)
        settings = {"batch_size": batch_size, "insecure": True, "ignore_memory": True}
        record = run(network, images, profile, **settings).record
        peaks = {role.replace(" ", "_"): peak for role, peak in record.peak_bytes.items()}
        largest = max(peaks.values())
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
                "memory_ratio": round(expected.memory_bytes / largest, 3),
                **row_context(model, profile),
            }
        )
        progress("runs", index + 1, len(work))
    return rows

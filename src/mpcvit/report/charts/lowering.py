"""Plain against lowered: the same network as it was trained, and as `mpcvit lower` made it."""

from collections.abc import Iterator
from dataclasses import dataclass

from mpcvit.report.charts.chart import BarChart, BarSeries, Origin, number
from mpcvit.report.charts.layers import at_a_time, network_of
from mpcvit.report.charts.seconds import PUBLISHED
from mpcvit.report.collect import Collected, TableKind

_FORMS = ("plain", "lowered")


@dataclass(frozen=True, kw_only=True)
class _Cost:
    network: str
    form: str
    exchanges: float
    sent_mb: float
    modelled_s: float | None
    measured_s: float | None
    top1: float | None = None
    paper_s: float | None = None


_MEASURES: tuple[tuple[str, str, str, Origin], ...] = (
    ("exchanges", "Exchanges", "exchanges", "counted"),
    ("sent_mb", "Bytes", "MB sent", "counted"),
    ("modelled_s", "Modelled seconds", "seconds", "modelled"),
    ("measured_s", "Measured seconds", "seconds", "measured"),
    ("top1", "Accuracy", "top-1 accuracy (%)", "trained"),
)


def charts(collected: Collected) -> list[BarChart]:
    """Return a chart per measure of the networks that there are in both forms."""
    costs = {(one.network, one.form): one for one in _costs(collected)}
    networks = [
        name
        for name in dict.fromkeys(name for name, _ in costs)
        if all((name, form) in costs for form in _FORMS)
    ]
    found = []
    for field, title, label, origin in _MEASURES:
        values = {
            form: tuple(getattr(costs[name, form], field) for name in networks) for form in _FORMS
        }
        if not all(any(value is not None for value in own) for own in values.values()):
            continue
        found.append(
            BarChart(
                id=f"lowered-{field.replace('_', '-')}",
                title=f"{title}, plain against lowered",
                caption=_caption(values["plain"], values["lowered"], field),
                value_label=label,
                categories=tuple(networks),
                series=(
                    *(
                        BarSeries(name=form, values=values[form], origin=origin, hue=place)
                        for place, form in enumerate(_FORMS)
                    ),
                    *_published([costs[name, "plain"].paper_s for name in networks], label),
                ),
            )
        )
    return found


def _published(paper_s: list[float | None], label: str) -> Iterator[BarSeries]:
    if label == "seconds" and any(value is not None for value in paper_s):
        yield BarSeries(name=PUBLISHED, values=tuple(paper_s), origin="published", hue=len(_FORMS))


def _caption(plain: tuple[float | None, ...], lowered: tuple[float | None, ...], field: str) -> str:
    about = {
        "top1": "On the whole test split, in plaintext.",
        "exchanges": "For the images that run at a time.",
    }.get(field, "For one image.")
    if field == "top1":
        return about
    ratios = [p / q for p, q in zip(plain, lowered, strict=True) if p and q]
    if not ratios:
        return about
    low, high = min(ratios), max(ratios)
    reach = f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"
    return f"{about} Plain takes {reach} times as much as lowered."


def _costs(collected: Collected) -> Iterator[_Cost]:
    for found in collected.records:
        record, images = found.value, found.value.images
        network = network_of(record)
        yield _Cost(
            network=f"{found.name.split(',')[0]}, {record.profile.protocol.name}"
            + at_a_time(record.batches[0].images),
            form=record.form,
            exchanges=record.exchanges / len(record.batches),
            sent_mb=record.sent_bytes / 1e6 / images,
            modelled_s=None if network is None else record.modelled_s(network) / images,
            measured_s=record.measured_s / images if record.was_timed else None,
        )
    for table in (
        *collected.tables_of(TableKind.PIPELINE),
        *collected.tables_of(TableKind.LOWERING),
    ):
        for row in table.value.rows:
            several = at_a_time(int(row.get("batch") or 1))
            yield _Cost(
                network=f"{row['network']}, {row.get('profile') or row['protocol']}{several}",
                form=row["form"],
                exchanges=float(row["exchanges"]),
                sent_mb=float(row["sent_mb"]),
                modelled_s=number(row.get("modelled_s")),
                measured_s=number(row.get("measured_s")),
                top1=number(row.get("top1")),
                paper_s=number(row.get("paper_s")),
            )

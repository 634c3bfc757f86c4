"""Where every number of a report comes from: code, machine, settings, and who had to be trusted."""

from collections.abc import Iterator
from typing import Any

from mpcvit.artifacts.provenance import Environment
from mpcvit.report.findings import Findings, TableKind

Row = dict[str, str]

# Columns of a table that say where its rows come from.
_TOLD = ("config", "shape", "protocol", "commit", "created", "hardware")


def rows(findings: Findings) -> list[Row]:
    """A row for each thing that was found."""
    found = [*_networks(findings), *_searches(findings), *_records(findings), *_tables(findings)]
    columns = list(dict.fromkeys(column for row in found for column in row))
    return [{column: row.get(column, "") for column in columns} for row in found]


def warnings(findings: Findings) -> list[str]:
    """What everyone who reads the numbers must know, each once."""
    notes = [note for found in findings.records for note in found.held.notes]
    told = [row.get("warning", "") for table in findings.tables for row in table.held.rows]
    return list(dict.fromkeys(text for text in (*notes, *told) if text))


def other_tables(findings: Findings) -> list[tuple[str, list[Row]]]:
    """Tables that are shown as they are."""
    titles = {
        TableKind.PREDICTIONS: "Private predictions beside the truth",
        TableKind.AGREEMENT: "Private against plaintext predictions",
        TableKind.SPEED: "Speed of training",
        TableKind.SEARCHES: "Searches",
    }
    return [
        (f"{title}: {table.name}", [dict(row) for row in table.held.rows])
        for kind, title in titles.items()
        for table in findings.tables_of(kind)
    ]


def _networks(findings: Findings) -> Iterator[Row]:
    for found in findings.networks:
        row, provenance = found.held.row, found.held.provenance
        yield {
            "what": found.name,
            "kind": "network",
            "file": str(found.place),
            "origin": row.origin,
            "config": found.held.config,
            "seed": _text(row.seed),
            "epochs": _text(row.epochs),
            "data": provenance.data_fingerprint[:12],
            **_environment(provenance.environment),
        }


def _searches(findings: Findings) -> Iterator[Row]:
    for found in findings.searches:
        provenance = found.held.provenance
        yield {
            "what": found.name,
            "kind": "search",
            "file": str(found.place),
            "origin": found.held.latency.source,
            "config": provenance.config.get("name", ""),
            "seed": _text(provenance.config.get("seed")),
            "epochs": _text(provenance.config.get("train", {}).get("epochs")),
            "data": provenance.data_fingerprint[:12],
            **_environment(provenance.environment),
        }


def _records(findings: Findings) -> Iterator[Row]:
    for found in findings.records:
        record = found.held
        profile, network = record.profile, record.profile.network
        line = "as it was"
        if network.round_trip_ms or network.bandwidth_bytes_per_s:
            line = (
                f"emulated: {network.round_trip_ms:g} ms, "
                f"{network.bandwidth_bytes_per_s / 1e6:g} MB/s"
            )
        yield {
            "what": found.name,
            "kind": f"private run, {record.form}",
            "file": str(found.place),
            "origin": f"{record.images} images, {record.transport}, "
            f"revealing {record.reveal.value}",
            "protocol": f"{profile.protocol.name}, {profile.ring_bits}-bit ring, "
            f"{profile.fraction_bits} fraction bits",
            "dealer": profile.dealer.value,
            "network": line,
            "program": record.program,
            **_environment(record.environment),
        }


def _tables(findings: Findings) -> Iterator[Row]:
    for table in findings.tables:
        told = {
            column: ", ".join(
                dict.fromkeys(row[column] for row in table.held.rows if row.get(column))
            )
            for column in _TOLD
        }
        yield {
            "what": table.name,
            "kind": table.held.kind.value,
            "file": str(table.place),
            **{column: text for column, text in told.items() if text},
        }


def _environment(environment: Environment) -> Row:
    versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items())
    return {
        "commit": environment.commit,
        "created": environment.created,
        "hardware": environment.hardware,
        "versions": versions,
    }


def _text(value: Any) -> str:
    return "" if value is None else str(value)

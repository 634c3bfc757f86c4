"""Where every number of a report comes from: code, machine, settings, and who had to be trusted."""

from collections.abc import Iterator

from mpcvit.artifacts.provenance import Environment
from mpcvit.report.collect import Collected, TableKind

Row = dict[str, str]

# Columns of a table that say where its rows come from.
_ORIGIN = ("config", "shape", "protocol", "commit", "created", "hardware")


def rows(collected: Collected) -> list[Row]:
    """Return a row for each thing that was found."""
    found = [*_trained(collected), *_records(collected), *_tables(collected)]
    columns = list(dict.fromkeys(column for row in found for column in row))
    return [{column: row.get(column, "") for column in columns} for row in found]


def warnings(collected: Collected) -> list[str]:
    """Return the warnings of all numbers, each once."""
    notes = [note for found in collected.records for note in found.value.notes]
    marked = [row.get("warning", "") for table in collected.tables for row in table.value.rows]
    return list(dict.fromkeys(text for text in (*notes, *marked) if text))


def other_tables(collected: Collected) -> list[tuple[str, list[Row]]]:
    """Return tables that are shown as they are."""
    titles = {
        TableKind.AGREEMENT: "Private against plaintext predictions",
        TableKind.SPEED: "Speed of training",
    }
    return [
        (f"{title}: {table.name}", [dict(row) for row in table.value.rows])
        for kind, title in titles.items()
        for table in collected.tables_of(kind)
    ]


def _trained(collected: Collected) -> Iterator[Row]:
    found = [("network", one, one.value.row.origin) for one in collected.networks]
    searches = [("search", one, one.value.latency.source) for one in collected.searches]
    for kind, one, origin in (*found, *searches):
        provenance = one.value.provenance
        config = provenance.config
        yield {
            "what": one.name,
            "kind": kind,
            "file": str(one.path),
            "origin": origin,
            "config": config.get("name", ""),
            "seed": str(config.get("seed", "")),
            "epochs": str(config.get("train", {}).get("epochs", "")),
            "data": provenance.data_fingerprint[:12],
            **_environment(provenance.environment),
        }


def _records(collected: Collected) -> Iterator[Row]:
    for found in collected.records:
        record = found.value
        profile, network = record.profile, record.profile.network
        images = "1 image" if record.images == 1 else f"{record.images} images"
        line = "as it was"
        if network.round_trip_ms or network.bandwidth_bytes_per_s:
            line = (
                f"emulated: {network.round_trip_ms:g} ms, "
                f"{network.bandwidth_bytes_per_s / 1e6:g} MB/s"
            )
        yield {
            "what": found.name,
            "kind": f"private run, {record.form}",
            "file": str(found.path),
            "origin": f"{images}, {record.transport}, revealing {record.reveal.value}",
            "protocol": f"{profile.protocol.name}, {profile.ring_bits}-bit ring, "
            f"{profile.fraction_bits} fraction bits",
            "dealer": profile.dealer.value,
            "network": line,
            "program": record.program,
            **_environment(record.environment),
        }


def _tables(collected: Collected) -> Iterator[Row]:
    for table in collected.tables:
        stated = {
            column: ", ".join(
                dict.fromkeys(row[column] for row in table.value.rows if row.get(column))
            )
            for column in _ORIGIN
        }
        yield {
            "what": table.name,
            "kind": table.value.kind.title,
            "file": str(table.path),
            **{column: text for column, text in stated.items() if text},
        }


def _environment(environment: Environment) -> Row:
    versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items())
    return {
        "commit": environment.commit,
        "created": environment.created,
        "hardware": environment.hardware,
        "versions": versions,
    }

"""The rows of the documentation's tables: of files below `results/`, and what is made of them."""

import csv
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from mpcvit.artifacts.forms import Activation, NormForm
from mpcvit.artifacts.latency import LatencyTable
from mpcvit.artifacts.search import SearchResult
from mpcvit.codec import read_toml
from mpcvit.errors import UserError
from mpcvit.kinds.table import RELU_SOFTMAX
from mpcvit.search.derive import derive_by_budget

Row = dict[str, Any]
_OPERATION = re.compile(r"(\w+) (\d+) exchanges ([\d.]+) MB ([\d.]+) s")


class Missing:
    """A value that no file holds."""

    def __format__(self, spec: str) -> str:
        return "–"

    def __getitem__(self, key: str) -> "Missing":
        return self


class Values(dict[str, Any]):
    """A row whose missing values print as dashes.

    >>> "{top1:.2f}, {lowered[exchanges]:,.0f}".format_map(Values(top1=73.23))
    '73.23, –'
    """

    def __missing__(self, key: str) -> Missing:
        return Missing()


def read_rows(root: Path, *names: str) -> list[Row]:
    """Return the rows of CSV files below `results/`; a file that is not there has no rows."""
    found = []
    for path in (root / "results" / f"{name}.csv" for name in names):
        if path.exists():
            with path.open(encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    found.append({key: _number(text) for key, text in row.items() if text})
    return found


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def beside(rows: Iterable[Row], *, per: str, by: str) -> list[Row]:
    """Return one row for each value of `per`, which holds its rows by the value of `by`.

    >>> rows = [{"n": "a", "form": "plain", "s": 3}, {"n": "a", "form": "lowered", "s": 1}]
    >>> beside(rows, per="n", by="form")[0]["lowered"]["s"]
    1
    """
    together: dict[Any, Row] = {}
    for row in rows:
        together.setdefault(row[per], {per: row[per]})[str(row[by])] = Values(row)
    return list(together.values())


def joined(*tables: Iterable[Row]) -> list[Row]:
    """Return the rows of all tables, with those of one network merged; later values win."""
    together: dict[Any, Row] = {}
    for row in (row for table in tables for row in table):
        together.setdefault(row["network"], {}).update(row)
    return list(together.values())


def _shipped(root: Path) -> list[Row]:
    """Return the networks of `mpcvit demo`, with top-1 in % by form."""
    path = root / "src" / "mpcvit" / "demo" / "shipped" / "showcase.json"
    networks = json.loads(path.read_text("utf-8"))["networks"]
    return [one | {form: 100 * top1 for form, top1 in one["top1"].items()} for one in networks]


def _found(root: Path) -> Iterable[Row]:
    """Return what the search of the demo left of each choice, by layer; the head comes last."""
    path = root / "src" / "mpcvit" / "demo" / "shipped" / "search" / "search.json"
    search = json.loads(path.read_text("utf-8"))
    *layers, (head,) = search["norms"]
    for index, (norm1, norm2) in enumerate(layers):
        alphas = (value for own in search["alpha"][index] for value in own)
        yield {
            "layer": index,
            "alphas": " ".join(f"{alpha:.2f}" for alpha in alphas),
            "norm1": norm1,
            "norm2": norm2,
            "gelu": fmean(search["beta"][index]),
            "merged once": search["tokens"][index][0],
            "merged twice": search["tokens"][index][1],
        }
    yield {"layer": "head", "norm1": head}


def _derived(root: Path, *budgets: str) -> Iterable[Row]:
    """Return what the search of the demo gives within budgets of seconds, at today's prices."""
    search = SearchResult.load(root / "src" / "mpcvit" / "demo" / "shipped" / "search")
    search = replace(search, latency=LatencyTable.load(root / "latency" / "cifar10-found.json"))
    for budget in budgets:
        try:
            found = derive_by_budget(search, float(budget), layer_norm_every=4)
        except UserError as refused:
            yield {"budget": budget, "seconds": f"refused: {refused}"}
            continue
        layers = dict(enumerate(found.architecture.layers))
        forms = {index: layer.form for index, layer in layers.items()}
        norms = [
            f"{index}.{place}"
            for index, form in forms.items()
            for place in ("norm1", "norm2")
            if getattr(form, place) is NormForm.LAYER
        ]
        head = ["head"] * (found.architecture.norm is NormForm.LAYER)
        gelu = [i for i, form in forms.items() if form.activation is not Activation.QUADRATIC]
        yield {
            "budget": budget,
            "seconds": f"{found.seconds:.2f}",
            "relu_softmax": _listed(i for i, own in layers.items() if RELU_SOFTMAX in own.heads),
            "layer_norms": _listed([*norms, *head]),
            "gelu": _listed(gelu),
            "tokens": _listed(form.tokens for form in forms.values()),
        }


def _listed(words: Iterable[object]) -> str:
    return ", ".join(map(str, words)) or "none"


def _published(root: Path, data: str, experiment: str) -> list[Row]:
    """Return the paper's values for an experiment."""
    path = root / "src" / "mpcvit" / "experiments" / "published.toml"
    networks = read_toml(path, "published figures")[data][experiment]
    names = {"top1": "paper_top1", "latency_s": "paper_s"}
    return [
        {"network": network, **{names[key]: value for key, (value, _) in values.items()}}
        for network, values in networks.items()
    ]


def _experiment(root: Path, name: str, *sources: str) -> list[Row]:
    """Return the networks of an experiment on CIFAR-10: the paper's values, and ours.

    Sources are folders of trainings, and files of what networks take (`secure/...`), whose
    rows stand by profile.
    """
    files = [source for source in sources if source.startswith("secure/")]
    folders = [source for source in sources if source not in files]
    rows = joined(
        _published(root, "cifar10", name),
        *(read_rows(root, f"{folder}/{name}") for folder in folders),
    )
    counted = {row.pop("network"): row for row in _by_profile(read_rows(root, *files))}
    return [
        {"seeds": "not run", **row, **counted.get(_as_counted(row["network"]), {})} for row in rows
    ]


def _by_profile(rows: Iterable[Row]) -> list[Row]:
    return beside(rows, per="network", by="profile")


def _trade_off(root: Path) -> list[Row]:
    """Return figure 7's networks that were trained or counted here."""
    folders = ("cifar10-tiny", "cifar10-tiny-per-layer")
    rows = _experiment(
        root, "trade-off", *folders, "secure/network-ablations", "secure/network-cifar"
    )
    return [row for row in rows if "top1_mean" in row or "semi2k-wan" in row]


def _as_counted(network: str) -> str:
    """Return the name under which benchmarks know a trained network."""
    return network.removesuffix("-distilled").replace("linformer-0.5", "linformer")


def _other_data_sets(root: Path) -> list[Row]:
    """Return figure 7's networks on CIFAR-100 and Tiny-ImageNet, beside our counts."""
    columns = [
        {
            "network": row["network"],
            f"{data} top1": row.get("paper_top1", Missing()),
            f"{data} s": row.get("paper_s", Missing()),
        }
        for data in ("cifar100", "tiny-imagenet")
        for row in _published(root, data, "trade-off")
    ]
    counted = {row["network"]: row for row in read_rows(root, "secure/network-tiny-imagenet")}
    rows = joined(columns)
    for row in rows:
        own = counted.get(_as_counted(row["network"]), {})
        row.update({name: own[name] for name in ("exchanges", "sent_mb", "modelled_s") if own})
    return rows


def _attention_variants(root: Path) -> list[Row]:
    """Return table 2's kinds: seconds by profile, and the accuracy that was trained here."""
    rows = [{"network": row["attention"], **row} for row in read_rows(root, "secure/attention")]
    rows = joined(_by_profile(rows), _experiment(root, "attention-variants", "cifar10-tiny"))
    return [{"seeds": "not run", **row} for row in rows]


def _tiny_ratios(root: Path) -> Iterable[Row]:
    """Compare seconds of other networks with MPCViT's at the Tiny-ImageNet shape."""
    rows = {row["network"]: row for row in read_rows(root, "secure/network-tiny-imagenet")}
    published = {row["network"]: row for row in _published(root, "tiny-imagenet", "trade-off")}
    pairs = (("softmax", "0.1"), ("mpcformer", "0.3"), ("the_x", "0.1"), ("linformer-0.7", "0.1"))
    for other, own in pairs:
        yield {
            "other": other,
            "own": own,
            "ours": rows[other]["modelled_s"] / rows[f"mpcvit-{own}"]["modelled_s"],
            "paper": published[other]["paper_s"] / published[f"mpcvit-{own}"]["paper_s"],
        }


def _softmax_mixed(root: Path) -> Iterable[Row]:
    """Compare seconds of softmax mixed with scaling with MPCViT's, by shape and ratio."""
    shapes = {
        "CIFAR": read_rows(root, "secure/network-variants", "secure/mpcvit-plus"),
        "Tiny-ImageNet": read_rows(root, "secure/network-tiny-imagenet"),
    }
    for shape, rows in shapes.items():
        seconds = {row["network"]: row["modelled_s"] for row in rows}
        for ratio in ("0.3", "0.7"):
            mixed, own = seconds[f"softmax-scaling-{ratio}"], seconds[f"mpcvit-{ratio}"]
            yield {"shape": shape, "ratio": ratio, "mixed": mixed, "own": own, "times": mixed / own}


def _shares(root: Path, name: str, column: str) -> list[Row]:
    """Return the seconds of a block, a network or softmax, and the share of each part in them."""
    tables: dict[tuple[Any, ...], Row] = {}
    for row in read_rows(root, name):
        key = (row["table"], row.get("value", ""))
        tables.setdefault(key, {})[row["part"]] = row[column]
    return [
        {
            "table": table,
            "value": value,
            "s": sum(parts.values()),
            **{part: s / sum(parts.values()) for part, s in parts.items()},
        }
        for (table, value), parts in tables.items()
    ]


def _breakdown(root: Path) -> Iterable[Row]:
    """Return the shares of a network's parts, and of softmax's own parts, by protocol."""
    for file, column in (("semi2k", "modelled_s"), ("cheetah", "measured_s")):
        shares = {row["table"]: row for row in _shares(root, f"secure/breakdown-{file}", column)}
        protocol = {"semi2k": "SEMI-2K"}.get(file, file.title())
        yield shares["softmax"] | shares["network of such blocks"] | {"protocol": protocol}


def _against(root: Path, name: str, base: str) -> Iterable[Row]:
    """Compare each network with one of them, from the file of all pairs."""
    turned = {"more": "less", "less": "more"}
    for row in read_rows(root, name):
        network, other = row["network"], row["other"]
        if other == base:
            yield row
        elif network == base:
            ends = {"low": row["high"], "high": row["low"]} if "low" in row else {}
            back = {key: -value for key, value in {"points": row["points"], **ends}.items()}
            verdict = turned.get(row["verdict"], row["verdict"])
            yield {**row, **back, "network": other, "other": base, "verdict": verdict}


def _alphas(root: Path, name: str) -> list[Row]:
    """Return the mean alpha of each layer, by search and seed."""
    found: dict[tuple[str, int], dict[int, list[float]]] = {}
    for row in read_rows(root, name):
        if row["parameter"] == "alpha":
            layers = found.setdefault((row["search"], row["seed"]), {})
            layers.setdefault(row["layer"], []).append(row["value"])
    return [
        {"search": search, "seed": seed, **{f"layer {i}": fmean(own) for i, own in layers.items()}}
        for (search, seed), layers in found.items()
    ]


def _operations(root: Path, name: str) -> Iterable[Row]:
    """Return the operations of each row, from its column `made_of`."""
    for row in read_rows(root, name):
        for operation, *counts in _OPERATION.findall(row["made_of"]):
            names = ("operation_exchanges", "operation_mb", "operation_s")
            yield {
                **row,
                "operation": operation,
                **dict(zip(names, map(float, counts), strict=True)),
            }


def _layers(root: Path) -> Iterable[Row]:
    """Return what the layers of each network take, from the least to the most."""
    networks: dict[str, list[Row]] = {}
    for row in read_rows(root, "secure/layers"):
        networks.setdefault(row["network"], []).append(row)
    for network, layers in networks.items():
        row: Row = {"network": network}
        for field in ("exchanges", "sent_mb", "modelled_s"):
            values = [layer[field] for layer in layers]
            row[field] = {"least": min(values), "most": max(values)}
        yield row


def _by_seed(root: Path, *names: str) -> list[Row]:
    """Return a row for each network, which holds its rows by `seed 0` and so on."""
    runs = [row | {"seed": f"seed {row['seed']}"} for row in read_rows(root, *names)]
    return beside(runs, per="network", by="seed")


def _seeds(root: Path, *folders: str) -> list[Row]:
    """Return each network's accuracy by seed, and the mean."""
    runs = _by_seed(root, *(f"{folder}/trade-off-runs" for folder in folders))
    return joined(runs, read_rows(root, *(f"{folder}/trade-off" for folder in folders)))


def _lengths(root: Path, *folders: str) -> Iterable[Row]:
    """Return the last epoch of each network in trainings of different length."""
    for folder in folders:
        last = {
            row["network"]: row
            for row in read_rows(root, f"{folder}/trade-off-epochs")
            if row["seed"] == 0
        }
        yield {"training": folder, **{name: Values(row) for name, row in last.items()}}


SOURCES: dict[str, Callable[..., Iterable[Row]]] = {
    "shipped": _shipped,
    "found": _found,
    "derived": _derived,
    "experiment": _experiment,
    "trade_off": _trade_off,
    "attention_variants": _attention_variants,
    "other_data_sets": _other_data_sets,
    "tiny_ratios": _tiny_ratios,
    "softmax_mixed": _softmax_mixed,
    "shares": _shares,
    "breakdown": _breakdown,
    "against": _against,
    "alphas": _alphas,
    "operations": _operations,
    "layers": _layers,
    "by_seed": _by_seed,
    "seeds": _seeds,
    "lengths": _lengths,
}

"""Every published figure against the table that it was taken from, as printed there."""

import pytest

from mpcvit.experiments.published import published_table

RATIOS = ("0.1", "0.3", "0.5", "0.7")

# The paper's tables, accuracy before latency. Table 2 is of CIFAR-10.
TABLE_2 = """
softmax 92.69 6.82
linformer 90.85 5.44
relu6 90.50 3.02
sparsemax 91.23 3.23
xnorm 91.24 13.25
square 91.27 0.72
quad2 91.86 4.22
scaling 91.52 0.66
relu_softmax 92.31 5.32
"""
TABLE_3 = """
0.5 93.01 93.16 93.21
0.7 93.32 93.13 93.38
"""  # layer-wise, row-wise, head-wise
TABLE_4 = """
mpcvit-0.7 93.38 59.02
labels-logits-0.7-distilled 94.18 62.39
labels-features-0.7-distilled 94.12 62.26
logits-features-0.7-distilled 94.14 61.80
mpcvit-0.7-distilled 94.27 63.03
"""  # CIFAR-10, Tiny-ImageNet
TABLE_5 = """
mpcvit-plus 93.92 43.88 94.27 54.56
mpcvit-plus-no-relu 93.72 41.37 93.81 52.11
"""  # ratio 0.3, ratio 0.7
TABLE_6 = """
pruned-1 92.48 50.88 73.25 51.12
pruned-2 92.83 57.65 73.99 57.84
pruned-3 93.03 66.21 74.61 66.70
mpcvit-0.7 93.38 63.56 75.38 63.79
"""  # CIFAR-10, CIFAR-100

# "Main results" of the authors' README: ratio, accuracy without and with distillation, seconds.
README = {
    "cifar10": """
        |0.1| 92.86 | 93.59 | 48.03 |
        |0.3| 93.01 | 94.08 | 52.88 |
        |0.5| 93.21 | 94.22 | 58.66 |
        |0.7| 93.38 | 94.27 | 63.56 |
    """,
    "cifar100": """
        |0.1| 73.17 | 76.40 | 48.74 |
        |0.3| 74.51 | 76.93 | 53.34 |
        |0.5| 74.45 | 76.92 | 59.27 |
        |0.7| 75.38 | 77.46 | 63.94 |
    """,
    "tiny-imagenet": """
        |0.1| 56.75 | 62.65 | 220.69 |
        |0.3| 58.05 | 63.38 | 316.77 |
        |0.5| 58.39 | 63.45 | 621.75 |
        |0.7| 59.02 | 63.03 | 823.74 |
    """,
}
README_BASELINES = """
    |Softmax ViT|-| 93.97 | 112.23 |
    |ReLU Softmax ViT| -|93.52 | 71.82 |
    |ScaleAttn ViT| -|92.23 | 44.63|
    |Linformer| 0.3|92.32|102.87 |
    |Linformer| 0.5|91.85|109.32 |
    |Linformer| 0.7|92.33|119.94 |
    |THE-X| -|89.66|52.39 |
    |MPCFormer w/o KD| -| 92.93|66.98|
    |MPCFormer w/ KD| -|93.98 | 66.98 |
"""
METHODS = {
    "Softmax ViT": "softmax",
    "ReLU Softmax ViT": "relu_softmax",
    "ScaleAttn ViT": "scaling",
    "THE-X": "the_x",
    "MPCFormer w/o KD": "mpcformer",
    "MPCFormer w/ KD": "mpcformer-distilled",
}

# The lists of numbers in the authors' figure scripts: accuracies, then seconds.
SCRIPTS = {
    "cifar10": {"per-layer": ([92.62, 92.83, 93.05, 93.31], [48.03, 52.88, 58.66, 63.56])},
    "cifar100": {
        "per-layer": ([72.73, 74.27, 74.25, 75.14], []),  # the seconds drawn are CIFAR-10's
        "linformer": ([72.64, 73.10, 73.55], [102.78, 109.32, 119.94]),
        "softmax": ([76.34], [112.23]),
        "relu_softmax": ([75.27], [72.55]),
        "scaling": ([73.57], [45.13]),
        "mpcformer": ([73.98], [67.45]),
        "mpcformer-distilled": ([77.01], [67.45]),
        "the_x": ([68.73], [53.24]),
    },
    "tiny-imagenet": {
        "per-layer": ([55.85, 57.55, 57.99, 58.72], [220.69, 316.77, 621.75, 823.74]),
        "linformer": ([56.00, 55.85, 56.18], [522.17, 780.31, 1093.23]),
        "softmax": ([60.71], [1370.61]),
        "relu_softmax": ([60.26], [1128.39]),
        "scaling": ([55.54], [121.57]),
        "mpcformer": ([57.27], [903.57]),
        "mpcformer-distilled": ([62.11], [903.57]),
        "the_x": ([52.17], [421.98]),
    },
}
# Of figure 12: MPCViT+ by layer, at the four ratios. The script subtracts from MPCViT's seconds.
BY_LAYER = ([93.38, 93.76, 94.11, 94.26], [48.03 - 11.9, 52.88 - 11.9, 58.66 - 11.9, 63.56 - 11.9])


def rows_of(text):
    return [line.split() for line in text.strip().splitlines()]


def cells_of(text):
    lines = text.strip().splitlines()
    return [[cell.strip() for cell in line.strip(" |").split("|")] for line in lines]


def quoted():
    """Return {(source, data, experiment, row, name): value} of all that is quoted above."""
    found = {}

    def note(source, data, experiment, row, top1=None, latency_s=None):
        for name, value in (("top1", top1), ("latency_s", latency_s)):
            if value is not None:
                found[source, data, experiment, row, name] = float(value)

    for row, top1, seconds in rows_of(TABLE_2):
        note("table 2", "cifar10", "attention-variants", row, top1, seconds)
    for ratio, *values in rows_of(TABLE_3):
        for label, value in zip(("layer-wise", "row-wise", "mpcvit"), values, strict=True):
            note("table 3", "cifar10", "granularity", f"{label}-{ratio}", value)
        note("table 3", "cifar10", "trade-off", f"mpcvit-{ratio}", values[-1])
    for row, *values in rows_of(TABLE_4):
        for data, value in zip(("cifar10", "tiny-imagenet"), values, strict=True):
            note("table 4", data, "distillation", row, value)
            for other in ("trade-off", "mpcvit-plus"):
                note("table 4", data, other, row, value)
    for row, *values in rows_of(TABLE_5):
        for experiment in ("mpcvit-plus", "mpcvit-plus-granularity"):
            note("table 5", "cifar10", experiment, f"{row}-0.3-distilled", *values[:2])
            note("table 5", "cifar10", experiment, f"{row}-0.7-distilled", *values[2:])
    for row, *values in rows_of(TABLE_6):
        for data, own in (("cifar10", values[:2]), ("cifar100", values[2:])):
            for experiment in ("head-pruning", "trade-off"):
                note("table 6", data, experiment, row, *own)
    for data, text in README.items():
        for ratio, alone, taught, seconds in cells_of(text):
            for experiment in ("trade-off", "mpcvit-plus"):
                note("README", data, experiment, f"mpcvit-{ratio}", alone, seconds)
                note("README", data, experiment, f"mpcvit-{ratio}-distilled", taught, seconds)
    for method, ratio, top1, seconds in cells_of(README_BASELINES):
        row = METHODS.get(method, f"linformer-{ratio}")
        note("README", "cifar10", "trade-off", row, top1, seconds)
    for data, methods in SCRIPTS.items():
        for method, (accuracies, seconds) in methods.items():
            ratios = RATIOS[-len(accuracies) :] if len(accuracies) > 1 else ("",)
            for place, ratio in enumerate(ratios):
                row = f"{method}-{ratio}" if ratio else method
                latency_s = seconds[place] if seconds else None
                note("figure script", data, "trade-off", row, accuracies[place], latency_s)
    for ratio, top1, seconds in zip(RATIOS, *BY_LAYER, strict=True):
        row = f"mpcvit-plus-layer-{ratio}-distilled"
        note("figure script", "cifar10", "mpcvit-plus-granularity", row, top1, round(seconds, 2))
    return found


def test_every_published_value_is_quoted_from_its_source():
    tables, checked = quoted(), set()
    for data, experiments in published_table().items():
        for experiment, rows in experiments.items():
            for row, values in rows.items():
                for name, (value, source) in values.items():
                    key = source, data, experiment, row, name
                    assert key in tables, f"{source} does not print {key[1:]}"
                    assert value == tables[key], key
                    checked.add(key)
    assert len(checked) == 192
    sources = [key[0] for key in checked]
    assert {source: sources.count(source) for source in set(sources)} == {
        **{"table 2": 18, "table 3": 8, "table 4": 14, "table 5": 12, "table 6": 18},
        **{"README": 62, "figure script": 60},
    }


@pytest.mark.parametrize(
    ("row", "ratio"), [("softmax", 6.2), ("mpcformer-distilled", 2.9), ("the_x", 1.9)]
)
def test_the_ratios_of_the_abstract_are_those_of_tiny_imagenet(row, ratio):
    """Against ratio 0.1, and 0.3 for MPCFormer."""
    rows = published_table()["tiny-imagenet"]["trade-off"]
    beside = "mpcvit-0.3" if row.startswith("mpcformer") else "mpcvit-0.1"
    seconds, ours = rows[row]["latency_s"][0], rows[beside]["latency_s"][0]
    assert round(seconds / ours, 1) == ratio

"""The engine behind all formats: what it makes, and how it reports what does not fit."""

import numpy as np
import pytest

from mpcvit.errors import UserError
from mpcvit.foreign.mapping import Layout, Rule, embedding, linear, match, norm
from mpcvit.foreign.tensor import Tensor

LAYOUT = Layout(
    project="a toy",
    rules=(
        *embedding(patch="patch", class_token="token", position="place", optional_class_token=True),
        *linear("blocks_{n}/qkv", ["b.{n}.q", "b.{n}.k"], "width", "width", optional_bias=True),
        *linear("blocks_{n}/up", "b.{n}.up", "3 width", "width"),
        *norm("norm", "norm"),
        Rule("extra_{n}", ("b.{n}.extra",), None, optional=True),
    ),
    unused=("b.{n}.old.{n}.weight",),
)
rng = np.random.default_rng(0)


def toy(**changes) -> dict[str, Tensor]:
    """Two blocks of width 5, patches of 2 with 3 channels, 7 tokens."""
    shapes = {"patch.weight": (5, 3, 2, 2), "patch.bias": (5,), "place": (1, 7, 5)}
    for block in ("b.0", "b.1"):
        shapes |= {f"{block}.q.weight": (5, 5), f"{block}.k.weight": (5, 5)}
        shapes |= {f"{block}.up.weight": (15, 5), f"{block}.up.bias": (15,)}
    shapes |= {"norm.weight": (5,), "norm.bias": (5,), **changes}
    return {
        name: wrap(rng.normal(size=shape).astype(np.float32))
        for name, shape in shapes.items()
        if shape is not None
    }


def wrap(array, dtype=None) -> Tensor:
    return Tensor(array.shape, dtype or array.dtype.name, lambda: array)


def test_parameters_are_made_by_the_table():
    tensors = toy(token=(1, 1, 5))
    matched = match(tensors, LAYOUT)
    made = matched.parameters
    assert matched.sizes == {"depth": 2, "width": 5, "channels": 3, "patch": 2, "tokens": 7}
    assert set(made) == {
        *("embed/patch/kernel", "embed/patch/bias", "embed/class_token", "embed/position"),
        *(f"blocks_{n}/{name}" for n in (0, 1) for name in ("qkv/kernel", "up/kernel", "up/bias")),
        *("norm/scale", "norm/bias"),
    }
    patch = tensors["patch.weight"].read()
    assert made["embed/patch/kernel"].shape == (12, 5)
    # pixel (row 1, column 0), channel 2 of output 4
    assert made["embed/patch/kernel"][(1 * 2 + 0) * 3 + 2, 4] == patch[4, 2, 1, 0]
    np.testing.assert_array_equal(made["embed/class_token"], tensors["token"].read()[0, 0])
    np.testing.assert_array_equal(made["embed/position"], tensors["place"].read()[0])
    q, k = (tensors[f"b.1.{part}.weight"].read() for part in "qk")
    np.testing.assert_array_equal(made["blocks_1/qkv/kernel"], np.hstack([q.T, k.T]))
    assert all(array.flags["C_CONTIGUOUS"] for array in made.values())


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_parameters_are_float32(dtype):
    tensors = toy()
    tensors["norm.bias"] = wrap(np.array([0, 1, 2, 3, 4], dtype))
    made = match(tensors, LAYOUT).parameters["norm/bias"]
    assert made.dtype == np.float32
    assert made.tolist() == [0, 1, 2, 3, 4]


def test_missing_and_unexpected_names_are_listed():
    tensors = toy(**{"norm.bias": None, "gamma": (5,), "b.1.up.bias": None})
    with pytest.raises(UserError) as caught:
        match(tensors, LAYOUT)
    assert str(caught.value) == (
        "looks like a toy, but is not one that can be read, so take a plain ViT: "
        "it lacks b.1.up.bias, norm.bias; it also has gamma"
    )


def test_what_is_only_missing_is_called_incomplete():
    with pytest.raises(
        UserError, match=r"is incomplete, so .* save it again: it lacks norm\.weight$"
    ):
        match(toy(**{"norm.weight": None}), LAYOUT)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"norm.bias": None}, r"norms without biases \(RMS norm\)"),
        ({"b.0.qkv.lora_A.weight": (1, 5)}, r"adapters \(LoRA\)"),
        ({"b.0.up.SCB": (15,)}, "quantised weights"),
        ({"b.0.attns.0.q.weight": (5, 5)}, "attention and MLP side by side"),
        ({"b.0.lambda_q1": (5,), "norm.bias": None}, "differential attention"),
    ],
)
def test_what_is_not_computed_here_has_a_name(changes, words):
    with pytest.raises(UserError, match=f"but has {words}, which cannot be read here, so take"):
        match(toy(**changes), LAYOUT)


def test_long_lists_are_shortened():
    strange = {f"strange{n}": (1,) for n in range(12)}
    with pytest.raises(UserError, match=r"strange7 and 4 more$"):
        match(toy(**strange), LAYOUT)


def test_names_cannot_break_the_line_or_flood_it():
    with pytest.raises(UserError) as caught:
        match(toy(**{"a\nb\x1b[31m": (1,), "x" * 10_000: (1,)}), LAYOUT)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_optional_names_are_all_or_none():
    with pytest.raises(UserError, match=r"lacks b\.0\.k\.bias, b\.1\.q\.bias, b\.1\.k\.bias$"):
        match(toy(**{"b.0.q.bias": (5,)}), LAYOUT)


def test_gap_between_blocks_is_noticed():
    tensors = {name.replace("b.1.", "b.2."): tensor for name, tensor in toy().items()}
    with pytest.raises(UserError, match=r"lacks b\.1\.q\.weight.*also has b\.2\.q\.weight"):
        match(tensors, LAYOUT)


def test_blocks_may_be_absent_only_by_name():
    tensors = {name: tensor for name, tensor in toy().items() if not name.startswith("b.")}
    with pytest.raises(UserError, match=r"lacks b\.0\.q\.weight"):
        match(tensors, LAYOUT)


def test_huge_block_number_is_only_a_name():
    with pytest.raises(UserError, match=r"also has b\.999999999\.up\.bias"):
        match(toy(**{"b.999999999.up.bias": (15,)}), LAYOUT)


def test_unused_names_are_passed_over():
    made = match(toy(**{"b.1.old.0.weight": (2, 2)}), LAYOUT).parameters
    assert not any("old" in path for path in made)


@pytest.mark.parametrize(
    ("name", "shape", "report"),
    [
        ("b.1.up.weight", (14, 5), r"b\.1\.up\.weight is 14 x 5 instead of 15 x 5$"),
        ("b.1.up.bias", (), r"b\.1\.up\.bias is a single number instead of 15$"),
        ("place", (2, 7, 5), r"place is 2 x 7 x 5 instead of 1 x 7 x 5$"),
        ("place", (1, 0, 5), r"place is 1 x 0 x 5 instead of 1 x tokens x 5$"),
        ("patch.weight", (5, 3), r"is 5 x 3 instead of 5 x 3 x patch x patch$"),
        ("patch.weight", (5, 3, 2, 4), r"patch\.weight is 5 x 3 x 2 x 4 instead of 5 x 3 x 2 x 2$"),
        ("norm.bias", (5, 1), r"norm\.bias is 5 x 1 instead of 5$"),
    ],
)
def test_shapes_that_do_not_fit_are_listed(name, shape, report):
    with pytest.raises(UserError, match=report):
        match(toy(**{name: shape}), LAYOUT)


@pytest.mark.parametrize("dtype", ["int8", "F8_E4M3", "bool"])
def test_only_floating_point_is_read(dtype):
    tensors = toy()
    tensors["norm.bias"] = wrap(np.zeros(5, np.int8), dtype)
    with pytest.raises(UserError, match=f"holds {dtype} numbers in norm.bias"):
        match(tensors, LAYOUT)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
def test_values_that_are_not_finite_are_refused(value):
    tensors = toy()
    tensors["norm.bias"] = wrap(np.array([1, 2, 3, 4, value]))
    with pytest.raises(UserError, match=r"holds values in norm\.bias that are not finite"):
        match(tensors, LAYOUT)

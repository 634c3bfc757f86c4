"""Checkpoints that the real frameworks wrote, against the logits they computed."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.config import Activation, BlockForm, Pooling
from mpcvit.errors import UserError
from mpcvit.foreign import read_foreign
from mpcvit.kinds import table
from mpcvit.model.vit import ViT

# Logits up to 5 in float32 on both sides; a wrong formula is off by 1e-3 and more.
LOGITS = 2e-5

CASES = {
    "authors_heads": "authors_heads.pth.tar",
    "authors_rows": "authors_rows.pth.tar",
    "authors_plus": "authors_plus.pth.tar",
    "authors_teacher": "authors_teacher.pth.tar",
    "timm_class": "timm_class",
    "timm_mean": "timm_mean",
    "hf": "hf",
    "hf_5": "hf_5",
}
R, S = table.RELU_SOFTMAX, table.SCALING
PATTERN = (1, 0, 0, 1, 0, 1, 1, 0, 1, 0)


def logits_error(golden: Path, case: str, foreign, forward) -> float:
    stored = np.load(golden / f"{case}.npz")
    return float(np.abs(forward(foreign, stored["images"]) - stored["logits"]).max())


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_framework(case, golden, forward):
    foreign = read_foreign(golden / CASES[case])
    assert logits_error(golden, case, foreign, forward) < LOGITS


@pytest.mark.parametrize("case", CASES)
def test_parameters_are_those_of_our_network(case, golden, flatten):
    foreign = read_foreign(golden / CASES[case])
    network = ViT(foreign.model, foreign.architecture)
    size, channels = foreign.model.image_size, foreign.model.channels
    images = jax.ShapeDtypeStruct((1, size, size, channels), jnp.float32)
    ours = jax.eval_shape(network.init, jax.random.key(0), images)["params"]
    found, wanted = (
        {path: (array.shape, str(array.dtype)) for path, array in flatten(tree).items()}
        for tree in (foreign.parameters, ours)
    )
    assert found == wanted


@pytest.mark.parametrize("forward", ["numpy"], indirect=True)
@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("authors_heads", {"block": BlockForm.PRE}),
        ("timm_class", {"heads": 4}),
        ("timm_class", {"activation": Activation.GELU_TANH}),
        ("hf", {"block": BlockForm.LITE}),
        ("hf_5", {"norm_eps": 1e-6}),
        ("hf_5", {"activation": Activation.GELU}),
    ],
)
def test_tolerance_has_teeth(case, changes, golden, forward):
    foreign = read_foreign(golden / CASES[case])
    heads = changes.get("heads", foreign.model.heads)
    layers = tuple(
        replace(layer, heads=(layer.heads * heads)[:heads]) for layer in foreign.architecture.layers
    )
    changed = replace(
        foreign,
        model=replace(foreign.model, **changes),
        architecture=Architecture(layers=layers),
    )
    assert logits_error(golden, case, changed, forward) > 10 * LOGITS


@pytest.mark.parametrize("forward", ["numpy"], indirect=True)
@pytest.mark.parametrize("case", ["authors_heads", "authors_rows", "authors_teacher"])
@pytest.mark.parametrize("kind", [R, S])
def test_every_choice_of_attention_matters(case, kind, golden, forward):
    foreign = read_foreign(golden / CASES[case])
    shape = {"depth": foreign.model.depth, "heads": foreign.model.heads}
    uniform = replace(foreign, architecture=Architecture.uniform(kind, **shape))
    assert logits_error(golden, case, uniform, forward) > 10 * LOGITS


def test_alpha_per_head_becomes_the_architecture(golden):
    layers = read_foreign(golden / "authors_heads.pth.tar").architecture.layers
    assert [layer.heads for layer in layers] == [(R, S, R), (S, S, R)]
    assert [layer.mlp for layer in layers] == [MlpForm.ACTIVATED] * 2


def test_alpha_per_row_becomes_rows_unless_all_agree(golden):
    layers = read_foreign(golden / "authors_rows.pth.tar").architecture.layers
    rows = tuple(R if one else S for one in PATTERN)
    assert [layer.heads for layer in layers] == [(rows, rows), (R, R)]


@pytest.mark.parametrize(
    ("relu_after", "form"), [(True, MlpForm.LINEAR_RELU), (False, MlpForm.LINEAR)]
)
def test_beta_becomes_the_form_of_the_mlp(relu_after, form, golden):
    foreign = read_foreign(golden / "authors_plus.pth.tar", relu_after=relu_after)
    mixed = tuple(MlpForm.ACTIVATED if one else form for one in PATTERN)
    assert [layer.mlp for layer in foreign.architecture.layers] == [mixed, form]


def test_what_the_authors_files_say(golden):
    heads = read_foreign(golden / "authors_heads.pth.tar")
    assert (heads.model.image_size, heads.model.patch_size, heads.model.channels) == (6, 2, 3)
    assert (heads.model.width, heads.model.heads, heads.model.hidden) == (15, 3, 30)
    assert (heads.model.norm_eps, heads.model.attention_eps) == (1e-5, 1e-5)
    assert (heads.model.block, heads.model.qkv_bias) == (BlockForm.LITE, False)
    assert heads.classes == ("0", "1", "2", "3", "4", "5", "6")
    assert (heads.preprocessing.mean, heads.preprocessing.std) == ((0.4, 0.5, 0.6), (0.2, 0.3, 0.1))
    assert heads.origin == "MPCViT authors' vit_7_4_32"
    teacher = read_foreign(golden / "authors_teacher.pth.tar")
    assert (teacher.model.heads, teacher.preprocessing.mean) == (2, None)
    assert teacher.architecture == Architecture.uniform(table.SOFTMAX, depth=2, heads=2)


def test_what_the_timm_folders_say(golden):
    foreign = read_foreign(golden / "timm_class")
    assert (foreign.model.norm_eps, foreign.model.block) == (1e-6, BlockForm.PRE)
    assert (foreign.model.heads, foreign.model.hidden, foreign.model.qkv_bias) == (3, 36, True)
    assert foreign.classes == ("ant", "bee", "cat", "dog", "emu")
    assert (foreign.preprocessing.mean, foreign.preprocessing.std) == ((0.5,) * 3, (0.5,) * 3)
    assert (foreign.preprocessing.fit.edge, foreign.origin) == (8, "timm's vit_tiny_patch16_224")
    mean = read_foreign(golden / "timm_mean")
    assert (mean.model.pooling, mean.model.channels) == (Pooling.MEAN, 1)
    assert mean.preprocessing.mean is None  # it records three numbers for its one channel


def test_what_the_hugging_face_folders_say(golden):
    foreign = read_foreign(golden / "hf")
    assert (foreign.model.norm_eps, foreign.model.hidden) == (1e-12, 33)
    assert foreign.classes == ("ant", "bee", "cat", "dog")
    assert (foreign.preprocessing.mean, foreign.preprocessing.std) == (
        (0.4, 0.5, 0.6),
        (0.2, 0.3, 0.1),
    )
    assert read_foreign(golden / "hf_5").preprocessing.mean is None


def test_search_is_not_mistaken_for_its_result(golden):
    with pytest.raises(UserError, match=r"alpha of layer 0 that is 0\.62.*search, not its result"):
        read_foreign(golden / "authors_search.pth.tar")


def test_command_in_a_pickle_is_refused_and_never_run(golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"'posix\.system'.*nothing in it was run"):
        read_foreign(golden / "hostile.pth")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "reason"), [("legacy.pth", "old format"), ("script.pt", "TorchScript")]
)
def test_other_formats_of_torch_are_refused(name, reason, golden):
    with pytest.raises(UserError, match=reason):
        read_foreign(golden / name)

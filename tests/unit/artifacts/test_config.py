"""Configuration: what is accepted, and how the rest is refused."""

import re
from dataclasses import replace

import pytest

from mpcvit.artifacts.config import Config, ModelConfig, load_config
from mpcvit.codec import decode, encode
from mpcvit.errors import UserError
from mpcvit.kinds import table
from tests.configs import COMPLETE, CONFIGS, TINY


@pytest.mark.parametrize("path", COMPLETE, ids=lambda path: path.stem)
def test_shipped_configs_load_and_round_trip(path):
    config = load_config(path)
    assert config.name == path.stem
    assert decode(Config, encode(config), "again") == config


def test_the_papers_shapes():
    cifar = load_config(CONFIGS / "cifar10.toml").model
    assert (cifar.depth, cifar.heads, cifar.width, cifar.tokens) == (7, 4, 256, 65)
    tiny = load_config(CONFIGS / "tiny-imagenet.toml").model
    assert (tiny.depth, tiny.heads, tiny.width, tiny.tokens) == (9, 12, 192, 257)
    assert cifar.hidden == 512
    assert tiny.head_dim == 16


def test_overrides():
    config = load_config(
        TINY,
        ["train.epochs=7", "model.attention=scaling", "augment.crop_scale=[0.5, 0.9]", "seed=3"],
    )
    assert config.train.epochs == 7
    assert config.model.attention is table.SCALING
    assert config.augment.crop_scale == (0.5, 0.9)
    assert config.seed == 3


def test_whole_numbers_serve_as_floats_but_not_the_reverse():
    assert load_config(TINY, ["model.mlp_ratio=3"]).model.mlp_ratio == 3.0
    with pytest.raises(UserError, match=r"'train.epochs' must be a whole number, not 1.5"):
        load_config(TINY, ["train.epochs=1.5"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epoch=1", "unknown key 'train.epoch'; did you mean 'train.epochs'?"),
        ("trian.epochs=1", "unknown key 'trian'; did you mean 'train'?"),
        ("model.attention=softmx", "'model.attention' cannot be 'softmx'; did you mean 'softmax'?"),
        ("model.width=17", "'model.width' (17) must be divisible by model.heads (2)"),
        ("model.patch_size=3", "'model.image_size' (8) must be divisible by model.patch_size (3)"),
        ("model.qkv_bias=1", "'model.qkv_bias' must be true or false, not 1"),
        ("train.epochs=true", "'train.epochs' must be a whole number, not true"),
        ("train.learning_rate=nan", "'train.learning_rate' must be finite"),
        ("train.learning_rate=fast", "'train.learning_rate' must be a number, not \"fast\""),
        ("train.epochs=0", "'train.epochs' must be positive"),
        ("train.batch_size=7", "'train.batch_size' must be even"),
        ("model.dropout=1.0", "'model.dropout' must lie in [0, 1)"),
        ("augment.crop_scale=[0.9, 0.5]", "'augment.crop_scale' must be two increasing"),
        ("augment.crop_scale=[0.9]", "'augment.crop_scale' must have 2 entries, not 1"),
        ("augment.crop_scale=1", "'augment.crop_scale' must be a list"),
        ("augment.crop_scale=[0.5, 'x']", "'augment.crop_scale[1]' must be a number"),
        ("data.mean=[0.5, 0.5]", "'data.std' must be as long as data.mean"),
        ("model.channels=3", "'data.mean' has 1 entries, but model.channels is 3"),
        ("model=3", "'model' must be a section, not 3"),
        ("name='a/b'", "'name' must be a plain folder name"),
        ("distributed.processes=2", "'distributed.coordinator' must name host:port"),
        ("epochs", "must have the form section.key=value"),
        ("seed.x=1", "'seed' is a value, not a section"),
    ],
)
def test_refusals_name_the_key(override, message):
    overrides = ["seed=0", override]
    with pytest.raises(UserError) as refused:
        load_config(TINY, overrides)
    assert message in str(refused.value)


def test_constants_of_kinds(monkeypatch):
    """A kind declares them, and `[model.constants]` needs no key of its own."""
    slope = table.Constant(default=3.0, allows=lambda value: value > 0, rule="must be positive")
    made_up = replace(table.RELU, name="made_up", constants={"slope": slope})
    monkeypatch.setitem(table.KINDS, "made_up", made_up)
    assert load_config(TINY).model.constant("slope") == 3.0
    config = load_config(TINY, ["model.constants.slope=5"])
    assert config.model.constant("slope") == 5.0
    assert decode(Config, encode(config), "config") == config
    for override, message in (
        ("slop=1", "'model.constants' has no 'slop'; did you mean 'slope'?"),
        ("slope=-1", "'model.constants.slope' must be positive"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            load_config(TINY, [f"model.constants.{override}"])


def test_missing_key_and_section(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("[model]\nimage_size = 8\n")
    with pytest.raises(UserError, match=r"key 'model.patch_size' is missing"):
        load_config(path)
    path.write_text("")
    with pytest.raises(UserError, match="section 'model' is missing"):
        load_config(path)


def test_unreadable_files(tmp_path):
    with pytest.raises(UserError, match="there is no configuration"):
        load_config(tmp_path / "none.toml")
    path = tmp_path / "bad.toml"
    path.write_text("a = = 1")
    with pytest.raises(UserError, match="not valid TOML"):
        load_config(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot read"):
        load_config(path)


def test_python_callers_get_the_reason_too():
    with pytest.raises(UserError, match="width"):
        ModelConfig(image_size=8, patch_size=2, classes=3, depth=1, heads=2, width=7)


# The paper's section 5.1 and the authors' three files, one column for each data set. Of a new
# training eps is the text's; the authors' files take the rest. Mixing stops at epoch 175 on
# CIFAR-10 alone.
RECIPES = {
    "": ("cifar10", "cifar100", "tiny-imagenet"),
    "train.epochs": (300, 300, 300),
    "search.epochs": (300, 300, 300),
    "distill.epochs": (600, 600, 300),
    "train.batch_size": (128, 128, 128),
    "train.learning_rate": (5.5e-4, 6e-4, 5e-4),
    "train.min_learning_rate": (1e-5, 1e-5, 1e-5),
    "train.warmup_epochs": (10, 10, 10),
    "train.warmup_learning_rate": (1e-5, 1e-6, 1e-6),
    "train.weight_decay": (6e-2, 6e-2, 5e-2),
    "augment.label_smoothing": (0.1, 0.1, 0.1),
    "augment.mixup": (0.8, 0.8, 0.8),
    "augment.cutmix": (1.0, 1.0, 1.0),
    "augment.mix_switch": (0.5, 0.5, 0.5),
    "augment.mix_off_epoch": (175, 0, 0),
    "augment.erasing": (0.25, 0.25, 0.25),
    "augment.rand_augment_ops": (2, 2, 2),
    "augment.rand_augment_magnitude": (9.0, 9.0, 9.0),
    "augment.rand_augment_std": (0.5, 0.5, 0.5),
    "augment.crop_scale": ((0.8, 1.0), (0.8, 1.0), (0.08, 1.0)),
    "data.eval_crop": (1.0, 1.0, 0.9),
    "model.dropout": (0.0, 0.0, 0.0),
    "model.attention_dropout": (0.1, 0.1, 0.1),
    "model.stochastic_depth": (0.1, 0.1, 0.1),
    "model.attention_eps": (1e-8, 1e-8, 1e-8),
    "model.mlp_ratio": (2.0, 2.0, 2.0),
    "search.latency_weight": (1e-5, 1e-5, 1e-5),
    "distill.temperature": (1.0, 1.0, 1.0),
    "distill.ce_weight": (1.0, 1.0, 1.0),
    "distill.logits_weight": (1.0, 1.0, 1.0),
    "distill.feature_weight": (1.0, 1.0, 1.0),
}


@pytest.mark.parametrize("column", range(3), ids=RECIPES[""])
def test_the_papers_recipes(column):
    config = load_config(CONFIGS / f"{RECIPES[''][column]}.toml")
    for name, values in RECIPES.items():
        if name:
            section, _, key = name.partition(".")
            assert getattr(getattr(config, section), key) == values[column], name

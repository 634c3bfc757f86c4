"""timm's checkpoints beyond the golden ones."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mpcvit.artifacts.config import Activation
from mpcvit.artifacts.image_fit import FitRule, ImageFit
from mpcvit.errors import UserError
from mpcvit.foreign import read_foreign, timm
from mpcvit.foreign.model import Options, Source
from mpcvit.foreign.tensor import Tensor


def network(width) -> dict[str, Tensor]:
    """One block, patches of 1 in an image of 1."""
    shapes = {"cls_token": (1, 1, width), "pos_embed": (1, 2, width)}
    shapes |= {"patch_embed.proj.weight": (width, 3, 1, 1), "patch_embed.proj.bias": (width,)}
    linears = {"attn.qkv": (3, 1), "attn.proj": (1, 1), "mlp.fc1": (1, 1), "mlp.fc2": (1, 1)}
    for name, (out, inputs) in linears.items():
        shapes[f"blocks.0.{name}.weight"] = (out * width, inputs * width)
        shapes[f"blocks.0.{name}.bias"] = (out * width,)
    for name in ("blocks.0.norm1", "blocks.0.norm2", "norm"):
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    shapes |= {"head.weight": (2, width), "head.bias": (2,)}
    return {name: zeros(shape) for name, shape in shapes.items()}


def zeros(shape) -> Tensor:
    return Tensor(shape, "float32", lambda: np.zeros(shape, np.float32))


def convert(width, config=None, tensors=None, **options):
    source = Source(origin="file", tensors=tensors or network(width), config=config or {})
    return timm.convert(source, Options(**options))


@pytest.fixture
def assert_same(flatten):
    def assert_same(left, right):
        left, right = flatten(left.parameters), flatten(right.parameters)
        assert set(left) == set(right)
        for path in left:
            np.testing.assert_array_equal(left[path], right[path])

    return assert_same


def test_file_alone_needs_heads(golden, assert_same):
    path = golden / "timm_class" / "model.safetensors"
    with pytest.raises(UserError, match="add --heads"):
        read_foreign(path)
    alone, folder = read_foreign(path, heads=3), read_foreign(golden / "timm_class")
    assert alone.model == folder.model
    assert_same(alone, folder)
    assert (alone.data_config(), alone.classes) == (None, ("0", "1", "2", "3", "4"))


def test_safetensors_and_torch_files_read_alike(golden, edited, assert_same):
    assert_same(read_foreign(edited("timm_mean")), read_foreign(golden / "timm_mean"))


@pytest.mark.parametrize(("width", "heads"), [(192, 3), (384, 6), (768, 12)])
def test_standard_widths_imply_heads(width, heads):
    assert convert(width).model.heads == heads
    assert convert(width, heads=2).model.heads == 2


def test_widths_imply_nothing_without_a_class_token():
    tensors = {**network(192), "pos_embed": zeros((1, 1, 192))}
    del tensors["cls_token"]
    assert convert(192, {"global_pool": "avg"}, tensors, heads=4).model.heads == 4
    with pytest.raises(UserError, match="add --heads"):
        convert(192, {"global_pool": "avg"}, tensors)


def test_arguments_state_heads_without_an_architecture():
    assert convert(48, {"model_args": {"num_heads": 4}}).model.heads == 4


@pytest.mark.parametrize(
    ("architecture", "heads"),
    [
        *(("vit_tiny_patch16_224", 3), ("deit_small_patch16_224", 6), ("test_vit", 2)),
        ("vit_base_patch16_gap_224", 16),  # the other models of this size have 12
    ],
)
def test_architecture_implies_heads(architecture, heads):
    assert convert(48, {"architecture": architecture}).model.heads == heads
    with pytest.raises(UserError, match=f"has {heads} heads"):
        convert(48, {"architecture": architecture}, heads=4)


@pytest.mark.parametrize(
    "architecture",
    [
        "vit_base_patch16_siglip_gap_256",
        "vit_base_patch16_plus_240",
        "flexivit_base",
        "resnet50",
        7,
    ],
)
def test_other_architectures_are_refused(architecture):
    with pytest.raises(UserError, match="not one of the ViTs that can be read"):
        convert(48, {"architecture": architecture}, heads=3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("blocks.0.attn.q_norm.weight", "norms of queries and keys"),
        ("blocks.0.mlp.fc1_g.weight", "gated MLPs"),
        ("attn_pool.latent", "attention pooling"),
        ("blocks.0.attn.relative_position_bias_table", "relative positions"),
        ("rope.freqs", "rotary positions"),
    ],
)
def test_what_is_not_computed_here_is_refused_by_its_name(name, words, edited):
    folder = edited("timm_class", {name: np.ones(24, np.float32)})
    with pytest.raises(UserError, match=f"has {words}.*, which cannot .*: it also has {name}$"):
        read_foreign(folder)


def test_gated_mlps_with_the_names_of_plain_ones_are_refused():
    tensors = {**network(48), "blocks.0.mlp.fc2.weight": zeros((48, 24))}
    with pytest.raises(UserError, match=r"has gated MLPs \(SwiGLU\), which cannot be read"):
        convert(48, {"architecture": "vit_giant_patch14_dinov2"}, tensors)


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ({"model_args": {"num_heads": 3, "img_size": [9, 36]}}, "9 x 36"),
        ({"pretrained_cfg": {"input_size": [3, 36, 9]}}, "36 x 9"),
    ],
)
def test_images_that_are_not_square_are_refused(sizes, shape, edited):
    with pytest.raises(UserError, match=f"takes images of {shape} pixels, but only square"):
        read_foreign(edited("timm_class", config=sizes))


def test_a_network_without_a_last_norm_is_refused(edited):
    with pytest.raises(UserError, match=r"lacks norm\.weight"):
        read_foreign(edited("timm_class", {"norm.weight": None, "norm.bias": None}))


def test_model_without_classifier_is_refused(edited):
    with pytest.raises(UserError, match="has no classifier, only the network before it"):
        read_foreign(edited("timm_class", {"head.weight": None, "head.bias": None}))


def test_positions_without_class_token_are_refused(edited):
    folder = edited("timm_class", {"pos_embed": np.ones((1, 18, 24), np.float32)})
    with pytest.raises(UserError, match="17 patches, which do not make a square"):
        read_foreign(folder)


@pytest.mark.parametrize(
    ("case", "config", "report"),
    [
        ("timm_class", {"global_pool": "max"}, "pools by 'max', but only 'token' and 'avg'"),
        ("timm_class", {"model_args": {"global_pool": "map"}}, "pools by 'map'"),
        ("timm_class", {"model_args": {"norm_layer": "rmsnorm"}}, r"model_args\.norm_layer"),
        ("timm_class", {"model_args": {"act_layer": "silu"}}, "act_layer 'silu'"),
        ("timm_class", {"model_args": {"num_heads": "3"}}, "must be a whole number"),
        ("timm_class", {"model_args": {"num_heads": 0}}, "'heads' must be positive"),
        ("timm_class", {"model_args": [1]}, "'model_args' .* must be an object"),
        ("timm_mean", {"model_args": {}, "global_pool": "max"}, "pools by 'max', but only 'avg'"),
        ("timm_mean", {"model_args": {}, "global_pool": None}, "does not say how it pools"),
    ],
)
def test_configurations_that_change_the_formula_are_refused(case, config, report, edited):
    with pytest.raises(UserError, match=report):
        read_foreign(edited(case, config=config))


def test_activation_is_read(edited):
    arguments = {"num_heads": 3, "act_layer": "gelu_tanh"}
    foreign = read_foreign(edited("timm_class", config={"model_args": arguments}))
    assert foreign.model.activation is Activation.GELU_TANH


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ({"1": "b", "0": "a"}, ("a", "b")),
        (["a", "b"], ("a", "b")),
        ([], ("0", "1")),
    ],
)
def test_labels_come_as_list_or_object(labels, classes):
    config = {"architecture": "vit_tiny_patch16_224", "label_names": labels}
    assert convert(48, config).classes == classes


@pytest.mark.parametrize("labels", [["a", "b", "c"], {"0": "a", "2": "b"}, [None, "b"]])
def test_labels_of_another_head_are_refused(labels):
    config = {"architecture": "vit_tiny_patch16_224", "label_names": labels}
    with pytest.raises(UserError, match=r"has 2 classes, but label_names in its config\.json"):
        convert(48, config)


def test_older_configuration_has_no_sections():
    flat = {"architecture": "vit_tiny_patch16_224", "mean": [0.1, 0.2, 0.3], "std": [1, 1, 1]}
    found = convert(48, {**flat, "crop_pct": 0.4}).preprocessing
    fit = ImageFit(rule=FitRule.SHORTER, edge=2, rounds_half=True)
    assert (found.mean, found.fit) == ((0.1, 0.2, 0.3), fit)


@pytest.mark.parametrize(
    ("entries", "report"),
    [
        ({"crop_mode": "border"}, "crop_mode 'border', but only center and squash"),
        ({"interpolation": "random"}, "interpolation 'random'"),
        ({"crop_pct": 1.1}, r"crop_pct 1\.1, which must lie within"),
        ({"crop_pct": "all"}, "crop_pct 'all'"),
        ({"crop_pct": 1e-320}, "crop_pct 1e-320"),  # whose edge no number can hold
        ({"crop_mode": ["center"]}, r"crop_mode \['center'\]"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(entries, report, edited):
    with pytest.raises(UserError, match=report):
        read_foreign(edited("timm_class", config={"pretrained_cfg": entries}))


@pytest.mark.parametrize(
    ("arguments", "report"),
    [({"global_pool": ["token"]}, "pools by"), ({"act_layer": {"gelu": 1}}, "uses act_layer")],
)
def test_arguments_of_another_kind_are_refused(arguments, report, edited):
    with pytest.raises(UserError, match=report):
        read_foreign(edited("timm_class", config={"model_args": arguments}))


def test_bfloat16_of_safetensors_is_read(golden, tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    tensors = load_file(golden / "timm_class" / "model.safetensors")
    rounded = {name: array.astype(ml_dtypes.bfloat16) for name, array in tensors.items()}
    save_file(rounded, tmp_path / "half.safetensors")
    made = read_foreign(tmp_path / "half.safetensors", heads=3).parameters["head"]["kernel"]
    assert made.dtype == np.float32
    np.testing.assert_array_equal(made, rounded["head.weight"].astype(np.float32).T)

"""Architecture: JSON round trip, validation, picture."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.forms import Activation, FormChoice, NormForm
from mpcvit.errors import UserError
from mpcvit.kinds import table

K = table
kinds, forms = st.sampled_from(list(K.KINDS.values())), st.sampled_from(MlpForm)
TOKENS = 5
POLYNOMIAL = FormChoice(norm1=NormForm.BATCH, tokens=33)


def choices(names):
    return st.one_of(names, st.lists(names, min_size=TOKENS, max_size=TOKENS).map(tuple))


norms = st.one_of(st.none(), st.sampled_from(NormForm))
layer_forms = st.builds(
    FormChoice,
    norm1=norms,
    norm2=norms,
    activation=st.one_of(st.none(), st.sampled_from(Activation)),
    tokens=st.one_of(st.none(), st.just(TOKENS)),
)
architectures = st.lists(
    st.builds(
        LayerArchitecture,
        heads=st.lists(choices(kinds), min_size=3, max_size=3).map(tuple),
        mlp=choices(forms),
        form=layer_forms,
    ),
    min_size=1,
    max_size=4,
).flatmap(lambda layers: st.builds(Architecture, layers=st.just(tuple(layers)), norm=norms))


@given(architectures)
def test_json_round_trip(architecture):
    assert Architecture.decoded(architecture.encoded(), "here") == architecture


@given(architectures)
def test_counts_add_up_to_the_heads(architecture):
    total = sum(architecture.count(kind) for kind in K.KINDS.values())
    assert total == pytest.approx(3 * len(architecture.layers))


def test_a_layer_that_chooses_no_form_has_its_old_digest():
    architecture = Architecture.uniform(K.SCALING, depth=2, heads=3)
    assert architecture.digest() == "3410406391c71a99"
    layers = (*architecture.layers[:1], LayerArchitecture(heads=(K.SCALING,) * 3, form=POLYNOMIAL))
    chosen = Architecture(layers=layers, norm=NormForm.BATCH)
    assert chosen.digest() != architecture.digest()
    document = json.loads(chosen.to_json())
    assert document["norm"] == "batch"
    assert document["layers"][1] == {
        "attention": ["scaling"] * 3,
        "mlp": "activated",
        "norm1": "batch",
        "tokens": 33,
    }


def test_save_and_load(tmp_path):
    architecture = Architecture.uniform(K.SCALING, depth=2, heads=3, mlp=MlpForm.FUSED)
    architecture.save(tmp_path / "arch.json")
    assert Architecture.load(tmp_path / "arch.json") == architecture
    assert [entry.name for entry in tmp_path.iterdir()] == ["arch.json"]


def test_symbols_are_distinct():
    symbols = [name.symbol for name in (*K.KINDS.values(), *MlpForm)]
    assert len(set(symbols)) == len(symbols)


def test_picture_of_a_mixture():
    layer = LayerArchitecture(
        heads=((K.SCALING, K.RELU_SOFTMAX), K.SOFTMAX), mlp=MlpForm.FUSED_RELU
    )
    assert Architecture(layers=(layer,)).picture().splitlines() == [
        "layer  heads  mlp",
        "    0  * E    F",
        "R = relu_softmax, S = scaling, E = softmax, F = fused_relu, * = mixed over tokens",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": [5, 5, 5]}, "has 2 layers, but the model has 3"),
        ({"heads": 4}, "layer 0 of the architecture has 2 heads, but the model has 4"),
        ({"tokens": [5, 7]}, "layer 1, head 1 of the architecture chooses for 5 tokens"),
    ],
)
def test_refuses_another_models_shape(change, message):
    layers = (
        LayerArchitecture(heads=(K.SOFTMAX,) * 2),
        LayerArchitecture(heads=(K.SOFTMAX, (K.SCALING,) * 5)),
    )
    shape = {"heads": 2, "tokens": [5, 5]}
    Architecture(layers=layers).validate(**shape)
    with pytest.raises(UserError, match=message):
        Architecture(layers=layers).validate(**{**shape, **change})


def document(layer):
    return json.dumps({"format": "mpcvit-architecture/1", "layers": [layer]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "its format is None"),
        ('{"format": "other/1"}', "its format is 'other/1'"),
        ('{"format": "mpcvit-architecture/1", "layers": []}', "'layers' must be a list"),
        (document({"attention": ["softmax"]}), "with 'attention' and 'mlp'"),
        (document({"attention": ["softmx"], "mlp": "linear"}), "did you mean 'softmax'"),
        (
            document({"attention": ["softmax"], "mlp": "fusd"}),
            r"layers\[0\].mlp.*did you mean 'fused'",
        ),
        (document({"attention": [["softmax", 0]], "mlp": "linear"}), "0 is not a count"),
        (document({"attention": [["softmax", True]], "mlp": "linear"}), "True is not a count"),
        (
            document({"attention": [["softmax"]], "mlp": "linear"}),
            "each followed by its token count",
        ),
        (document({"attention": [], "mlp": "linear"}), "one entry per head"),
        (document({"attention": [[["x"], 1]], "mlp": "linear"}), "unknown"),
    ],
)
def test_refuses_bad_files(tmp_path, text, message):
    (tmp_path / "arch.json").write_text(text)
    with pytest.raises(UserError, match=message):
        Architecture.load(tmp_path / "arch.json")


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match="there is no architecture"):
        Architecture.load(tmp_path / "none.json")

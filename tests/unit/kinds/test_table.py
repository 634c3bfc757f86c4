"""The table is read everywhere: no other file names a kind, with exceptions that say why."""

import ast
from pathlib import Path

import pytest

import mpcvit
from mpcvit.kinds import table
from mpcvit.kinds.costs import PRODUCT, power_of

SOURCE = Path(mpcvit.__file__).parent
OWN_ROOMS = ("kinds", "attention")
CONSTANTS = {key: kind.name for key, kind in vars(table).items() if isinstance(kind, table.Kind)}

_SEARCHED = {"softmax", "relu_softmax", "scaling"}  # the paper's teacher, and its two kinds
EXCEPTIONS = {
    # defaults of a configuration
    "artifacts/choices.py": {"relu_softmax", "scaling"},
    "artifacts/model_config.py": {"softmax"},
    # networks, tables and recipes of the paper
    "bench/networks.py": _SEARCHED | {"linformer", "quad2", "the_x"},
    "bench/paper_tables.py": {"softmax", "relu_softmax"},
    "bench/peers.py": _SEARCHED,
    "bench/crypten_party.py": {"softmax", "scaling"},
    "bench/training.py": {"softmax"},
    "cli/bench/runs.py": {"softmax", "relu_softmax", "scaling"},
    "cost/estimate.py": _SEARCHED | {"linformer", "quad2", "the_x"},  # of the paper's networks
    "cli/bench/tables.py": {"softmax", "relu_softmax", "linformer", "quad2", "the_x"},
    "experiments/catalogue.py": _SEARCHED,
    "experiments/recipes.py": {"softmax", "the_x"},
    "secure/components.py": {"softmax"},  # parts of the paper's softmax block
    # lowered prices are what a choice adds to a network of the kind that costs least
    "bench/latency.py": {"scaling"},
    # the kinds of other projects' networks
    "foreign/authors.py": _SEARCHED,
    "foreign/huggingface.py": {"softmax", "relu"},
    "foreign/timm.py": {"softmax", "relu"},
    # an activation, and a coefficient, that have the name of a kind
    "artifacts/forms.py": {"relu"},
    "model/layers.py": {"square"},
    "lowering/fold.py": {"square"},
}


def kinds_named_in(text):
    """Return the kinds that code names: by their constant, by their file, or by a string."""
    modules, found = set(), set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ImportFrom(module="mpcvit.kinds", names=names):
                modules |= {alias.asname or alias.name for alias in names if alias.name == "table"}
            case ast.ImportFrom(module="mpcvit.kinds.table", names=names):
                found |= {CONSTANTS[alias.name] for alias in names if alias.name in CONSTANTS}
            case ast.ImportFrom(module="mpcvit.attention", names=names):
                found |= {alias.name for alias in names} & table.KINDS.keys()
            case ast.ImportFrom(module=str(module)) if module.startswith("mpcvit.attention."):
                found |= {module.rpartition(".")[2]} & table.KINDS.keys()
            case ast.Constant(value=str(name)):
                found |= {name} & table.KINDS.keys()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in modules:
                found |= {CONSTANTS[name]} if name in CONSTANTS else set()
    return found


@pytest.mark.parametrize(
    "text",
    [
        "from mpcvit.kinds.table import KINDS, SQUARE",
        "from mpcvit.kinds import costs, table as t\nt.SQUARE",
        "from mpcvit.attention.square import square_weights",
        "from mpcvit.attention import square",
        "if kind.name == 'square': pass",
        "match kind.name:\n    case 'square': pass",
        "KINDS['square']",
    ],
)
def test_a_name_is_noticed(text):
    assert kinds_named_in(text) == {"square"}


def test_what_is_no_name_of_a_kind():
    text = (
        '"""Heads by square or softmax."""\nActivation.SQUARE\nfrom mpcvit.kinds.table import KINDS'
    )
    assert kinds_named_in(text) == set()


def test_only_exceptions_name_a_kind():
    unexpected = {}
    for path in SOURCE.rglob("*.py"):
        file = path.relative_to(SOURCE)
        if file.parts[0] not in OWN_ROOMS:
            named = kinds_named_in(path.read_text("utf-8"))
            unexpected[file.as_posix()] = named - EXCEPTIONS.get(file.as_posix(), set())
    assert not {file: kinds for file, kinds in unexpected.items() if kinds}


def test_every_row_has_a_file_and_every_file_a_row():
    files = {path.stem for path in (SOURCE / "attention").glob("*.py")}
    assert files - {"__init__", "kind_math", "phases"} == set(table.KINDS)


def test_constants_have_one_owner_and_allowed_defaults():
    owned = [(name, own) for kind in table.KINDS.values() for name, own in kind.constants.items()]
    assert len({name for name, _ in owned}) == len(owned)
    assert all(own.allows(own.default) for _, own in owned)


@pytest.mark.parametrize("power", [0, 1, 3, -2, 2.5, float("inf"), float("nan")])
def test_an_odd_power_is_refused(power):
    constant = table.POWER_SOFTMAX.constants["power"]
    assert not constant.allows(power)
    assert constant.allows(2)


@pytest.mark.parametrize(
    ("exponent", "products"), [(1, 0), (2, 1), (4, 2), (6, 3), (8, 3), (15, 6)]
)
def test_the_products_of_a_power(exponent, products):
    assert power_of(exponent).exchanges == products * PRODUCT.exchanges

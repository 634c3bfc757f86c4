"""What each way to install brings: the package, its extras, and a dealer's host."""

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mpcvit
from mpcvit.dealer.keys import load_private_key
from mpcvit.dealer.party.client import DealerClient
from mpcvit.hosts.credentials import Credentials
from mpcvit.secure.parties.roles import free_addresses
from tests.command import invoke
from tests.configs import TINY
from tests.docs.pages import ROOT
from tests.unit.dealer.jobs import expected, fetch, make_job, new_seeds

EXTRAS = ("matplotlib", "pyarrow", "sklearn", "tensorboardX", "psycopg", "beartype", "crypten")
HOME = Path(mpcvit.__file__).parent
# Of a process in which only some packages can be imported: argument 1 is a JSON list of them,
# argument 2 the code to run.
_BLOCK = """
import json, sys
allowed, code = json.loads(sys.argv[1]), sys.argv[2]
class Block:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top.startswith("_") or top in sys.stdlib_module_names or top in allowed:
            return None
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
del sys.argv[1:3]
exec(code)
"""
_MAIN = "from mpcvit.cli import main; main()"


def confined(allowed, code, *arguments):
    """Return the words of a process that can import the given packages alone."""
    words = (json.dumps(sorted(allowed)), code, *map(str, arguments))
    return [sys.executable, "-c", _BLOCK, *words]


def modules_of(distributions):
    """Return what can be imported from distributions, given by their names."""
    wanted = {_canonical(name) for name in distributions}
    homes = importlib.metadata.packages_distributions()
    named = {
        module for module, names in homes.items() if wanted & {_canonical(name) for name in names}
    }
    installed = (
        file
        for own in importlib.metadata.distributions()
        if _canonical(own.metadata["Name"]) in wanted
        for file in own.files or ()
    )
    # Python 3.10 knows only what distributions name themselves
    return named | {file.parts[0].removesuffix(".py") for file in installed if file.suffix == ".py"}


def _canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def _pins(file):
    lines = (ROOT / file).read_text("utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def dealers_modules():
    names = [line.partition("==")[0] for line in _pins("requirements-dealer.txt")]
    return {"mpcvit", *modules_of(names)}


def test_no_import_needs_an_extra():
    """Each module of the package is imported where no extra is installed."""
    modules = [
        ".".join(file.relative_to(HOME.parent).with_suffix("").parts)
        for file in sorted(HOME.rglob("*.py"))
        if file.name not in ("__init__.py", "__main__.py")
    ]
    code = f"""
import importlib, sys
sys.modules.update(dict.fromkeys({EXTRAS}))
for name in {modules}:
    importlib.import_module(name)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    ("package", "arguments", "told"),
    [
        ("tensorboardX", ("train", TINY), "training needs tensorboardX; run pip install '[train]'"),
        ("matplotlib", ("pipeline", TINY), "training needs matplotlib; run pip install '[train]'"),
        (
            "sklearn.datasets",
            ("train", TINY),
            "the data set of digits needs sklearn; run pip install '[train]'",
        ),
    ],
)
def test_a_missing_extra_is_named(
    package, arguments, told, tmp_path, tmp_path_factory, monkeypatch
):
    monkeypatch.setenv("MPCVIT_CACHE", str(tmp_path_factory.mktemp("cache")))  # without digits
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    shown = invoke(*arguments, code=2).stderr
    assert told.replace("'[", "'mpcvit[") in shown
    assert list(tmp_path.iterdir()) == []


def test_versions_of_a_dealers_host_are_those_of_the_constraints():
    assert set(_pins("requirements-dealer.txt")) <= set(_pins("constraints.txt"))


def test_a_dealers_host_serves_with_its_few_packages(dealers_modules, tmp_path):
    assert not {"jax", "flax", "spu", "PIL", "scipy", "safetensors"} & dealers_modules

    def words(*arguments):
        return confined(dealers_modules, _MAIN, *arguments)

    dealer = tmp_path / "dealer"
    subprocess.run(words("dealer", "keys", "--out", dealer), check=True, timeout=60)
    certificates = ("certs", "--out", tmp_path / "certs", "--dealer-host", "127.0.0.1")
    subprocess.run(words(*certificates), check=True, timeout=60)
    (address,) = free_addresses(1)
    serve = ("dealer", "serve", "--listen", address, "--keys", dealer)
    with subprocess.Popen(
        words(*serve, "--tls", tmp_path / "certs" / "dealer"), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            assert process.stderr.readline().startswith("dealing at")
            key, seeds = load_private_key(dealer), new_seeds()
            job = make_job(key, seeds)
            for party in ("client", "server"):
                client = DealerClient(
                    address=address,
                    fingerprint=key.public.fingerprint,
                    context=Credentials(folder=tmp_path / "certs" / party).dealer_context(),
                    patience_s=10.0,
                )
                client.authorise(job)
            assert fetch(client, job) == expected(seeds)
        finally:
            process.terminate()


def test_other_commands_of_a_dealers_host_say_what_is_missing(dealers_modules):
    done = subprocess.run(
        confined(dealers_modules, _MAIN, "show", HOME / "demo/shipped/softmax/model.safetensors"),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert re.fullmatch(
        r"mpcvit: this command needs \w+, which is not installed; run pip install mpcvit\n",
        done.stderr,
    )


def test_help_and_messages_name_no_file_of_the_repository():
    """A user of the wheel has none of them."""
    named = re.compile(r"\b(docs|tools|tests)/|CONTRIBUTING|README\.md")
    found = []
    for file in sorted(HOME.rglob("*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        documents = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        is_help = "cli" in file.parts  # where a docstring is a command's help
        found += [
            f"{file.relative_to(HOME)}: {node.value[:60]}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and (is_help or id(node) not in documents)
            and named.search(node.value)
        ]
    assert not found

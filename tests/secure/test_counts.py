"""What the paper's CIFAR network costs once it is lowered: exact, and never to rise again."""

from pathlib import Path

import pytest

from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.engine import choose_engine
from mpcvit.artifacts.profile import load_profile
from mpcvit.bench.lowered import lower_with_plan, read_reference
from mpcvit.bench.networks import paper_networks, polynomial_network, random_images
from mpcvit.secure.card import LEAST_RUNS
from mpcvit.secure.run import run

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "src/mpcvit/bench/programs/relu_softmax.json"


def steady_cost(name, depth):
    """Of an image after the first, with masks of weights that are reused."""
    model = load_config(Path("cifar10"), [f"model.depth={depth}"]).model
    profile = load_profile("semi2k-dealer")
    known = {**paper_networks(model), "polynomial": polynomial_network(model)}
    plan = read_reference(EXAMPLE).plan
    program = lower_with_plan(plan, model, known[name], choose_engine(profile))
    images = random_images(model, LEAST_RUNS)
    record = run(program, images, profile, reveal="logits", simulate=True).record
    return record.batches[-1].total


@pytest.mark.long
def test_two_layers():
    cost = steady_cost("relu_softmax", 2)
    assert cost.exchanges <= 86
    assert cost.sent_bytes <= 14_759_516


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "exchanges", "sent_bytes"),
    [
        ("relu_softmax", 268, 75_207_000),
        ("mpcvit-0.7", 268, 70_822_000),
        ("mpcvit-0.1", 200, 61_416_000),
        ("scaling", 146, 60_766_000),
        ("polynomial", 56, 19_163_500),
    ],
)
def test_seven_layers(name, exchanges, sent_bytes):
    cost = steady_cost(name, 7)
    assert cost.exchanges <= exchanges
    assert cost.sent_bytes <= sent_bytes

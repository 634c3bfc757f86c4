"""A search from end to end on digits: resuming, logging, and useless heads."""

from dataclasses import dataclass

import numpy as np
import pytest

from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.search import SearchResult
from mpcvit.cost.estimate import estimate
from mpcvit.data import load_dataset
from mpcvit.errors import UserError
from mpcvit.report.runs import FigureWriter
from mpcvit.search.task import Search, search
from mpcvit.train.log import read_log
from mpcvit.train.loop import StoppedError, fit
from tests.configs import TINY
from tests.unit.train.test_loop import StopAt


def configure(*settings):
    return load_config(TINY, ["search.epochs=2", *settings])


@pytest.fixture(scope="module")
def dataset():
    config = configure()
    model = config.model
    return load_dataset(
        config.data, image_size=model.image_size, channels=model.channels, classes=model.classes
    )


@pytest.mark.long
def test_a_stopped_search_resumes_to_the_same_alpha(tmp_path, dataset, monkeypatch, drawn):
    monkeypatch.setattr("mpcvit.train.loop.REPORT_EVERY_S", 0.0)
    config = configure("search.activation=token", "search.latency_weight=1e-2")
    table = estimate(config.model)
    whole = search(config, dataset, tmp_path / "whole", latency=table, observers=(FigureWriter(),))
    with pytest.raises(StoppedError):
        search(config, dataset, tmp_path / "cut", latency=table, observers=(StopAt(14),))
    resumed = search(config, dataset, tmp_path / "cut", latency=table, resume=True)
    assert resumed.alpha == whole.alpha
    assert resumed.beta == whole.beta
    assert whole.search.kept is table.RELU_SOFTMAX
    rows = read_log(tmp_path / "whole")
    assert rows[-1]["alpha"] == [[list(row) for row in layer] for layer in whole.alpha]
    assert np.shape(rows[-1]["beta"]) == (2, 5)
    assert rows[-1]["train_expected_s"] < rows[0]["train_expected_s"]
    assert (tmp_path / "whole" / "search.png").exists()
    heat, layers, movement = drawn[-1].axes[:3]  # of alpha; beta's follow
    by_head = np.array(whole.alpha)[:, :, 0]
    shown = [float(text.get_text()) for text in heat.texts]
    np.testing.assert_allclose(np.reshape(shown, by_head.shape), by_head, atol=0.005)
    np.testing.assert_allclose(layers.lines[0].get_ydata(), by_head.mean(axis=1))
    assert [line.get_ydata()[-1] for line in movement.lines] == pytest.approx(by_head.mean(axis=1))
    assert list(movement.lines[0].get_xdata()) == [row["epoch"] for row in rows]


@pytest.mark.long
def test_another_latency_is_another_search(tmp_path, dataset):
    config = configure("search.epochs=1")
    search(config, dataset, tmp_path, latency=estimate(config.model))
    other = estimate(configure("model.activation=quad").model)
    with pytest.raises(UserError, match="'latency' was"):
        search(config, dataset, tmp_path, latency=other, resume=True)
    with pytest.raises(UserError, match="made for 2 heads, but the model has 4"):
        search(configure("model.heads=4"), dataset, tmp_path, latency=other)


@dataclass(frozen=True, kw_only=True)
class WithUselessHead(Search):
    """Head 1 of layer 0 has no values and is not read: it can neither help nor learn to."""

    def init(self, seed):
        parameters = super().init(seed)
        attention = parameters["blocks_0"]["attention"]
        width, head_dim = self.config.model.width, self.config.model.head_dim
        own = slice(head_dim, 2 * head_dim)
        qkv = attention["qkv"]["kernel"]
        attention["qkv"]["kernel"] = qkv.at[:, 2 * width : 3 * width].set(
            qkv[:, 2 * width :].at[:, own].set(0)
        )
        attention["proj"]["kernel"] = attention["proj"]["kernel"].at[own].set(0)
        return parameters


def test_a_useless_head_is_given_up_first(tmp_path, dataset):
    config = configure(
        *("train.epochs=16", "train.learning_rate=0.01", "search.latency_weight=1e-3"),
        *("augment.mixup=0.0", "augment.cutmix=0.0", "augment.erasing=0.0"),
    )
    task = WithUselessHead(config=config, latency=estimate(config.model), data_fingerprint="")
    fit(task, config, dataset, tmp_path)
    alpha = np.array(SearchResult.load(tmp_path).alpha)[:, :, 0]
    useless, others = alpha[0, 1], np.delete(alpha.reshape(-1), 1)
    assert useless < 0.3
    assert (others > useless + 0.3).all(), alpha

"""The search: weights and the shares of choices learnt together, in one level."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mpcvit.artifacts.choices import Choice, Mixture
from mpcvit.artifacts.config import Config
from mpcvit.artifacts.latency import LatencyTable
from mpcvit.artifacts.provenance import SEARCH_FILE, content_digest
from mpcvit.artifacts.resolve import fewer_tokens, mixture_of
from mpcvit.artifacts.search import SearchResult
from mpcvit.codec import encode
from mpcvit.data import Batch, Dataset
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.search.objective import (
    FormPrices,
    NetworkShares,
    Prices,
    expected_seconds,
    network_seconds,
)
from mpcvit.train.evaluate import Evaluation, cross_entropy, in_top
from mpcvit.train.loop import Observer, fit
from mpcvit.train.statistics import learn
from mpcvit.train.step import Outcome, Task

_SHARES = ("alpha", "beta", "layer_share", "token_shares")


@dataclass(frozen=True, kw_only=True)
class Search(Task):
    """The task of learning labels with as few seconds as they are worth.

        loss = CE + lambda seconds(alpha) + eta seconds(beta)

    If norms, activations or tokens are chosen too, it is CE + lambda seconds(all choices).
    Shares begin at 1 and are brought back into [0, 1] after each step.
    """

    latency: LatencyTable

    @property
    def form(self) -> Mixture:
        return mixture_of(self.config.model, self.config.search)

    def identity(self) -> dict[str, Any]:
        return {
            "search": encode(self.config.search),
            "latency": content_digest(encode(self.latency)),
            **super().identity(),
        }

    def loss(
        self, parameters: Any, frozen: Any, batch: Batch, rng: jax.Array, epoch: jax.Array
    ) -> tuple[jax.Array, Outcome]:
        share = self.layer_share(epoch)
        learnt = learn(self.model, parameters, batch.images, rng, share)
        task = cross_entropy(learnt.logits, batch.targets).mean()
        penalty, seconds = self.penalty(parameters)
        images = batch.labels.shape[0]
        metrics = {
            "ce": task * images,
            "expected_s": seconds * images,
            "top1": in_top(learnt.logits, jnp.argmax(batch.targets, axis=-1), 1).sum(),
        }
        loss = task + penalty + self.outlier_loss(learnt)
        return loss, Outcome(metrics, learnt.statistics)

    def penalty(self, parameters: Any) -> tuple[jax.Array, jax.Array]:
        """Return the latency term of the loss, and the seconds that it weighs."""
        search = self.config.search
        if not search.is_the_papers:
            return self._penalty_of_all(parameters)
        prices = Prices.of(search, self.latency)
        seconds = expected_seconds(self._alpha(parameters), prices.attention, search.cost)
        penalty = search.latency_weight * seconds
        if beta := self._beta(parameters):
            activation_s = expected_seconds(beta, prices.activation, search.cost)
            penalty += prices.activation_weight(search) * activation_s
            seconds += activation_s
        return penalty, seconds

    def _penalty_of_all(self, parameters: Any) -> tuple[jax.Array, jax.Array]:
        """Return lambda times the seconds of all choices, and these seconds."""
        model, search = self.config.model, self.config.search
        counts = (model.tokens, *fewer_tokens(model, search))
        prices = [
            [FormPrices.of(model, search, self.latency, layer, count) for count in counts]
            for layer in range(model.depth)
        ]
        seconds = network_seconds(self._shares(parameters), prices, search.cost)
        return search.latency_weight * seconds, seconds

    def project(self, parameters: Any) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: jnp.clip(leaf, 0, 1) if path[-1].key in _SHARES else leaf,
            parameters,
        )

    def epoch_values(self, parameters: Any) -> dict[str, Any]:
        choices = vars(self._shares(parameters))
        return {name: [_plain(a) for a in arrays] for name, arrays in choices.items() if arrays}

    def save(self, folder: Path, parameters: Any, evaluation: Evaluation) -> None:
        SearchResult(
            model=self.config.model,
            search=self.config.search,
            **{"beta": (), **self.epoch_values(parameters)},
            latency=self.latency,
            provenance=self.provenance("searched", evaluation),
        ).save(folder / SEARCH_FILE)

    def _shares(self, parameters: Any) -> NetworkShares:
        blocks, choices = self._blocks(parameters), self.config.search.choices
        norms, tokens = [], []
        if Choice.NORM in choices:
            pairs = [
                [block[name]["layer_share"] for name in ("norm1", "norm2")] for block in blocks
            ]
            norms = [jnp.stack(own) for own in (*pairs, [parameters["norm"]["layer_share"]])]
        if Choice.TOKENS in choices:
            tokens = [block["token_shares"] for block in blocks]
        return NetworkShares(
            alpha=self._alpha(parameters), beta=self._beta(parameters), norms=norms, tokens=tokens
        )

    def _alpha(self, parameters: Any) -> list[jax.Array]:
        return [block["attention"]["alpha"] for block in self._blocks(parameters)]

    def _beta(self, parameters: Any) -> list[jax.Array]:
        return [
            block["mlp"]["beta"] for block in self._blocks(parameters) if "beta" in block["mlp"]
        ]

    def _blocks(self, parameters: Any) -> list[Any]:
        return [parameters[f"blocks_{index}"] for index in range(self.config.model.depth)]


def search(
    config: Config,
    dataset: Dataset,
    folder: Path,
    *,
    latency: LatencyTable,
    start: Checkpoint | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
) -> SearchResult:
    """Search for `search.epochs`, or resume, and give what was found."""
    config.require_searchable()
    latency.require_shape(config.model, "the latency file")
    if not config.search.is_the_papers:
        latency.require_choices("the latency file")
    config = replace(config, train=replace(config.train, epochs=config.search.epochs))
    task = Search(
        config=config,
        latency=latency,
        data_fingerprint=dataset.fingerprint,
        classes=dataset.classes,
        start=start,
    )
    fit(task, config, dataset, folder, resume=resume, observers=observers)
    return SearchResult.load(folder)


def _plain(array: jax.Array) -> list[Any]:
    return np.asarray(array, np.float64).round(6).tolist()

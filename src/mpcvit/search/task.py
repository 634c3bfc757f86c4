"""The search: weights, alpha and beta learnt together, in one level."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mpcvit.artifacts.architecture import LayerMixture, Mixture
from mpcvit.artifacts.config import Config
from mpcvit.artifacts.latency import LatencyTable
from mpcvit.artifacts.provenance import SEARCH_FILE, Environment, Provenance, content_digest
from mpcvit.artifacts.search import SearchResult
from mpcvit.codec import encode
from mpcvit.data import Batch, Dataset
from mpcvit.model.vit import ViT, init_parameters
from mpcvit.search.objective import Prices, expected_seconds
from mpcvit.train.devices import DTYPES
from mpcvit.train.evaluate import Evaluation
from mpcvit.train.loop import Observer, fit
from mpcvit.train.losses import cross_entropy, in_top
from mpcvit.train.statistics import Statistics, layer_share, learn, measure
from mpcvit.train.step import Outcome


@dataclass(frozen=True, kw_only=True)
class Search:
    """The task of learning labels with as few seconds as they are worth.

        loss = CE + lambda seconds(alpha) + eta seconds(beta)

    alpha and beta begin at 1 and are brought back into [0, 1] after each step.
    """

    config: Config
    latency: LatencyTable
    data_fingerprint: str

    @property
    def mixture(self) -> Mixture:
        search = self.config.search
        layer = LayerMixture(
            kept=search.kept,
            replacement=search.replacement,
            granularity=search.granularity,
            activation=search.activation,
        )
        return Mixture(layers=(layer,) * self.config.model.depth)

    @property
    def model(self) -> ViT:
        return ViT(self.config.model, self.mixture, dtype=DTYPES[self.config.train.precision])

    def identity(self) -> dict[str, Any]:
        return {
            "search": encode(self.config.search),
            "latency": content_digest(encode(self.latency)),
            "data_fingerprint": self.data_fingerprint,
        }

    def init(self, seed: int) -> Any:
        return init_parameters(self.config.model, self.mixture, seed)

    def frozen(self) -> Any:
        return {}

    def loss(
        self, parameters: Any, frozen: Any, batch: Batch, rng: jax.Array, epoch: jax.Array
    ) -> tuple[jax.Array, Outcome]:
        share = layer_share(self.config.train, epoch)
        logits, _, statistics = learn(self.model, parameters, batch.images, rng, share)
        task = cross_entropy(logits, batch.targets).mean()
        penalty, seconds = self.penalty(parameters)
        images = batch.labels.shape[0]
        metrics = {
            "ce": task * images,
            "expected_s": seconds * images,
            "top1": in_top(logits, jnp.argmax(batch.targets, axis=-1), 1).sum(),
        }
        return task + penalty, Outcome(metrics, statistics)

    def statistics(self, parameters: Any, images: jax.Array) -> Statistics:
        return measure(self.model, parameters, images)

    def penalty(self, parameters: Any) -> tuple[jax.Array, jax.Array]:
        """Return the latency term of the loss, and the seconds that it weighs."""
        search, prices = self.config.search, Prices.of(self.config.search, self.latency)
        seconds = expected_seconds(self._alpha(parameters), prices.attention, search.cost)
        penalty = search.latency_weight * seconds
        if beta := self._beta(parameters):
            activation_s = expected_seconds(beta, prices.activation, search.cost)
            penalty += prices.activation_weight(search) * activation_s
            seconds += activation_s
        return penalty, seconds

    def project(self, parameters: Any) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: jnp.clip(leaf, 0, 1) if path[-1].key in ("alpha", "beta") else leaf,
            parameters,
        )

    def logits(self, parameters: Any, images: jax.Array) -> jax.Array:
        return self.model.apply({"params": parameters}, images)[0]

    def epoch_values(self, parameters: Any) -> dict[str, Any]:
        choices = {"alpha": self._alpha(parameters), "beta": self._beta(parameters)}
        return {name: [_plain(a) for a in arrays] for name, arrays in choices.items() if arrays}

    def save(self, folder: Path, parameters: Any, evaluation: Evaluation) -> None:
        notes = self.epoch_values(parameters)
        SearchResult(
            model=self.config.model,
            search=self.config.search,
            alpha=notes["alpha"],
            beta=notes.get("beta", ()),
            latency=self.latency,
            provenance=Provenance(
                origin="searched",
                environment=Environment.current(),
                config=encode(self.config),
                data_fingerprint=self.data_fingerprint,
                metrics=evaluation.as_metrics(),
            ),
        ).save(folder / SEARCH_FILE)

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
    resume: bool = False,
    observers: Sequence[Observer] = (),
) -> SearchResult:
    """Search for `search.epochs`, or resume, and give what was found."""
    latency.require_shape(config.model, "the latency file")
    config = replace(config, train=replace(config.train, epochs=config.search.epochs))
    task = Search(config=config, latency=latency, data_fingerprint=dataset.fingerprint)
    fit(task, config, dataset, folder, resume=resume, observers=observers)
    return SearchResult.load(folder)


def _plain(array: jax.Array) -> list[Any]:
    return np.asarray(array, np.float64).round(6).tolist()

"""Plan: which networks a pipeline makes, and how it measures them."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.choices import ActivationGranularity
from mpcvit.artifacts.config import Config
from mpcvit.artifacts.latency import LatencyTable
from mpcvit.artifacts.profile import Profile
from mpcvit.errors import UserError, nearest
from mpcvit.experiments.catalogue import RATIOS, find_experiment
from mpcvit.experiments.recipes import (
    SEARCH,
    SOFTMAX,
    Recipe,
    SearchRecipe,
    fine_tuned,
    mpcvit,
    within,
)
from mpcvit.kinds.table import Kind, find_kind
from mpcvit.model.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A teacher, baselines, and networks by ratio or by budget.

    With a `start` the teacher is that network, fine-tuned, and all others start from it.
    Then prices and measurements are those of lowered networks.
    """

    config: Config
    profile: Profile
    ratios: tuple[float, ...] = RATIOS
    budgets_s: tuple[float, ...] = ()
    baselines: tuple[str, ...] = ()
    images: int = 1  # test images to classify privately
    simulate: bool = False
    start: Checkpoint | None = None

    def __post_init__(self) -> None:
        for ratio in self.ratios:
            if not 0 <= ratio <= 1:
                raise UserError(f"a ratio must lie in [0, 1], not be {ratio:g}")
        if not self.found:
            raise UserError("give at least one ratio or one budget")
        self.profile.require_network()
        known = _baselines()
        for name in self.baselines:
            if name not in known:
                raise UserError(f"there is no baseline {name!r}; {nearest(name, list(known))}")

    @cached_property
    def teacher(self) -> Recipe:
        start = self.start
        return SOFTMAX if start is None else fine_tuned(start.model, start.architecture)

    @property
    def search(self) -> SearchRecipe:
        return replace(SEARCH, start=self._begin)

    @property
    def networks(self) -> tuple[Recipe, ...]:
        """All networks, the teacher first."""
        known = _baselines()
        baselines = (replace(known[name], start=self._begin) for name in self.baselines)
        return (self.teacher, *baselines, *self.found)

    @cached_property
    def found(self) -> tuple[Recipe, ...]:
        """Those that come from the search, retrained with the teacher."""
        derivation: Any = {"search": self.search, "mlp_form": self._mlp_form}
        recipes = (
            *(mpcvit(ratio, distilled=True, **derivation) for ratio in self.ratios),
            *(within(budget, **derivation) for budget in self.budgets_s),
        )
        return tuple(replace(recipe, teacher=self.teacher, start=self._begin) for recipe in recipes)

    def refuse_budgets(self, table: LatencyTable) -> None:
        """Refuse a budget that no choice of the search meets, before anything is searched."""
        config, cheap = self.config, self.config.search.replacement
        cheapest = Architecture.uniform(
            cheap,
            depth=config.model.depth,
            heads=config.model.heads,
            mlp=self._mlp_form or MlpForm.ACTIVATED,
        )
        seconds = table.seconds(table.price(cheapest))
        for budget_s in self.budgets_s:
            if seconds > budget_s:
                advice = "" if self._mlp_form else ", or add --set search.activation=layer"
                raise UserError(
                    f"no network meets a budget of {budget_s:g} s: the cheapest possible, with "
                    f"{cheap.value} in every head, takes {seconds:.2f} s; give a larger "
                    f"--budget{advice}"
                )

    @property
    def forms(self) -> tuple[MlpForm, ...]:
        """Every form of an MLP that may be derived, and LINEAR, which the search compares with."""
        return (MlpForm.ACTIVATED, MlpForm.LINEAR, *filter(None, (self._mlp_form,)))

    @property
    def _begin(self) -> Recipe | None:
        """Return whose weights the others start with."""
        return None if self.start is None else self.teacher

    @property
    def _mlp_form(self) -> MlpForm | None:
        """Return the form of tokens without GeLU, where the search may drop it."""
        searched = self.config.search.activation is not ActivationGranularity.NONE
        return MlpForm.FUSED_RELU if searched else None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Every attention kind that must be priced."""
        search = self.config.search
        named = [
            find_kind(setting.partition("=")[2])
            for recipe in self.networks
            for setting in recipe.settings
            if setting.startswith("model.attention=")
        ]
        return tuple(dict.fromkeys((search.kept, search.replacement, *named)))


def _baselines() -> dict[str, Recipe]:
    """Return the networks of the paper's comparison that no search finds."""
    networks = find_experiment("trade-off").networks
    return {
        recipe.name: recipe
        for recipe in networks
        if recipe.derivation is None and recipe is not SOFTMAX
    }

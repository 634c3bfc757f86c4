"""Plan: which networks a pipeline makes, and how it measures them."""

from dataclasses import dataclass
from functools import cached_property

from mpcvit.artifacts.architecture import ActivationGranularity, MlpForm
from mpcvit.artifacts.config import Config
from mpcvit.artifacts.profile import Profile
from mpcvit.errors import UserError, nearest
from mpcvit.experiments.catalogue import RATIOS, find_experiment
from mpcvit.experiments.recipes import SOFTMAX, Recipe, mpcvit, within
from mpcvit.kinds.table import Kind, find_kind


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A teacher, baselines, and networks by ratio or by budget."""

    config: Config
    profile: Profile
    ratios: tuple[float, ...] = RATIOS
    budgets_s: tuple[float, ...] = ()
    baselines: tuple[str, ...] = ()
    images: int = 1  # test images to classify privately
    simulate: bool = False

    def __post_init__(self) -> None:
        for ratio in self.ratios:
            if not 0 <= ratio <= 1:
                raise UserError(f"a ratio must lie in [0, 1], not be {ratio:g}")
        if not self.found:
            raise UserError("give at least one ratio or one budget")
        if not self.profile.network.is_emulated:
            raise UserError(
                "the profile names no network to price and to measure through; "
                "take one, as semi2k-wan"
            )
        known = _baselines()
        for name in self.baselines:
            if name not in known:
                raise UserError(f"there is no baseline {name!r}; {nearest(name, list(known))}")

    @property
    def networks(self) -> tuple[Recipe, ...]:
        """All networks, the teacher first."""
        known = _baselines()
        return (SOFTMAX, *(known[name] for name in self.baselines), *self.found)

    @cached_property
    def found(self) -> tuple[Recipe, ...]:
        """Those that come from the search, retrained with the teacher."""
        searches_mlp = self.config.search.activation is not ActivationGranularity.NONE
        form = MlpForm.FUSED_RELU if searches_mlp else None
        return (
            *(mpcvit(ratio, distilled=True, mlp_form=form) for ratio in self.ratios),
            *(within(budget, mlp_form=form) for budget in self.budgets_s),
        )

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
    """Networks of the paper's comparison that no search finds."""
    networks = find_experiment("trade-off").networks
    return {
        recipe.name: recipe
        for recipe in networks
        if recipe.derivation is None and recipe is not SOFTMAX
    }

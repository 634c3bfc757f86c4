"""The paper's tables and figures as lists of recipes."""

from dataclasses import dataclass, replace
from enum import Enum

from mpcvit.artifacts.architecture import MlpForm
from mpcvit.errors import UserError, nearest
from mpcvit.experiments.recipes import (
    SEARCH,
    SOFTMAX,
    Recipe,
    SearchRecipe,
    found,
    linformer,
    mpcformer,
    mpcvit,
    plain,
    pruned,
    searched,
    the_x,
    with_paper_forms,
)
from mpcvit.kinds.table import RELU_SOFTMAX, SCALING, parse_kinds

RATIOS = (0.1, 0.3, 0.5, 0.7)


class Length(str, Enum):
    """The section of a configuration whose `epochs` every network of an experiment trains."""

    TRAIN = "train"
    DISTILL = "distill"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of the paper: networks to train, or searches to look into.

    All its networks, and their teacher, train the same number of epochs.
    """

    name: str
    mirrors: str
    about: str
    networks: tuple[Recipe, ...] = ()
    searches: tuple[SearchRecipe, ...] = ()
    length: Length = Length.DISTILL

    @property
    def row_names(self) -> tuple[str, ...]:
        return tuple(row.name for row in (*self.networks, *self.searches))

    def within(self, budgets_s: tuple[float, ...]) -> "Experiment":
        """Return the experiment with networks of these seconds in place of its own."""
        derived = {row for row in self.networks if row.derivation and row.derivation.budget_s}
        if not derived:
            raise UserError(f"{self.name} has no networks within seconds; `found` has")
        others = (row for row in self.networks if row not in derived)
        return replace(self, networks=(*others, *map(found, budgets_s)))

    def only(self, names: list[str]) -> "Experiment":
        """Return the experiment with some of its rows."""
        for name in names:
            if name not in self.row_names:
                known = list(self.row_names)
                raise UserError(
                    f"{self.name} has no row {name!r}; {nearest(name, known)} "
                    f"(rows: {', '.join(known)})"
                )
        return replace(
            self,
            networks=tuple(row for row in self.networks if row.name in names),
            searches=tuple(row for row in self.searches if row.name in names),
        )


_GELU_TOKEN = searched("gelu-token", "search.activation=token")
_GELU_LAYER = searched("gelu-layer", "search.activation=layer")
_MIXED_SOFTMAX = searched("softmax", "search.kept=softmax")

_TABLE_2 = parse_kinds(
    "softmax,linformer,relu,relu6,sparsemax,xnorm,square,quad2,scaling,relu_softmax"
)

EXPERIMENTS = (
    Experiment(
        name="attention-variants",
        mirrors="Table: attention variants on CIFAR-10 (accuracy and latency)",
        about="the ten attention kinds, each in every head, on labels alone",
        networks=tuple(plain(kind) for kind in _TABLE_2),
        length=Length.TRAIN,
    ),
    Experiment(
        name="trade-off",
        mirrors="Figure: top-1 accuracy and latency against all baselines",
        about="MPCViT at four ratios with and without distillation, beside every baseline",
        networks=(
            SOFTMAX,
            plain(RELU_SOFTMAX),
            plain(SCALING),
            *(linformer(ratio) for ratio in (0.3, 0.5, 0.7)),
            the_x(),
            the_x(whole=True),
            mpcformer(),
            mpcformer(distilled=True),
            mpcformer(distilled=True, quad_gelu=True),
            *(mpcvit(ratio) for ratio in RATIOS),
            *(mpcvit(ratio, distilled=True) for ratio in RATIOS),
            *(mpcvit(ratio, per_layer=True) for ratio in RATIOS),
            *(mpcvit(ratio, search=_MIXED_SOFTMAX, label="softmax-scaling") for ratio in RATIOS),
        ),
    ),
    Experiment(
        name="granularity",
        mirrors="Table: structure granularities of the attention search",
        about="layers, rows and heads as units of choice, at two ratios",
        networks=tuple(
            mpcvit(ratio, search=search, label=label)
            for ratio in (0.5, 0.7)
            for label, search in (
                ("layer-wise", searched("layer", "search.granularity=layer")),
                ("row-wise", searched("row", "search.granularity=row")),
                ("mpcvit", SEARCH),
            )
        ),
    ),
    Experiment(
        name="distillation",
        mirrors="Table: combinations of the training losses at a ratio of 0.7",
        about="which of labels, logits and token features teach, beside networks of one kind "
        "that a teacher taught but no search found",
        networks=(
            mpcvit(0.7),
            *(
                replace(
                    mpcvit(0.7, distilled=True, label=label),
                    settings=(f"distill.{off}_weight=0.0",),
                )
                for label, off in (
                    ("labels-logits", "feature"),
                    ("labels-features", "logits"),
                    ("logits-features", "ce"),
                )
            ),
            mpcvit(0.7, distilled=True),
            plain(SCALING, distilled=True),
            plain(RELU_SOFTMAX, distilled=True),
        ),
    ),
    Experiment(
        name="latency-weight",
        mirrors="Figures: distribution of alpha under different lambda and numbers of heads",
        about="mean alpha per layer for lambda from 1e-3 to 1e-6, and with twice the heads",
        searches=(
            *(
                searched(f"lambda-{weight}", f"search.latency_weight={weight}")
                for weight in ("1e-3", "1e-4", "1e-6")
            ),
            SEARCH,
            SearchRecipe(name="search-8-heads", heads=8),
        ),
    ),
    Experiment(
        name="mpcvit-plus",
        mirrors="Figure and table: MPCViT+ beside MPCViT, with and without the added ReLU",
        about="GeLU dropped token by token at three thresholds, linears fused, distilled",
        networks=(
            *(mpcvit(ratio, distilled=True) for ratio in (0.3, 0.7)),
            *(
                mpcvit(ratio, distilled=True, search=_GELU_TOKEN, mlp_form=form, label=label)
                for label, form in (
                    ("mpcvit-plus", MlpForm.FUSED_RELU),
                    ("mpcvit-plus-no-relu", MlpForm.FUSED),
                )
                for ratio in (0.3, 0.7)
            ),
            *(
                mpcvit(
                    ratio,
                    distilled=True,
                    search=_GELU_TOKEN,
                    mlp_form=MlpForm.FUSED_RELU,
                    gelu_threshold=threshold,
                    label=f"mpcvit-plus-sigma-{threshold}",
                )
                for threshold in (0.5, 0.9)
                for ratio in (0.3, 0.7)
            ),
        ),
    ),
    Experiment(
        name="mpcvit-plus-granularity",
        mirrors="Figure: GeLU dropped by layer against by token",
        about="the unit of choice of MPCViT+, at two ratios, distilled",
        networks=tuple(
            mpcvit(ratio, distilled=True, search=search, mlp_form=MlpForm.FUSED_RELU, label=label)
            for label, search in (("mpcvit-plus", _GELU_TOKEN), ("mpcvit-plus-layer", _GELU_LAYER))
            for ratio in (0.3, 0.7)
        ),
    ),
    Experiment(
        name="head-pruning",
        mirrors="Table: MPCViT against pruning to one, two and three heads",
        about="ReLU-softmax networks with fewer heads beside MPCViT at 0.7",
        networks=(*(pruned(heads) for heads in (1, 2, 3)), mpcvit(0.7)),
    ),
    Experiment(
        name="beyond-attention",
        mirrors="Not in the paper: batch norms, learnt quadratics, fewer tokens, narrow queries",
        about="the network of a configuration that has them, the same with one of them taken "
        "out, and the paper's norms and GeLU with two kinds of attention",
        networks=(
            with_paper_forms("paper-relu_softmax", kind=RELU_SOFTMAX),
            Recipe(name="configured"),
            with_paper_forms("paper-scaling", kind=SCALING),
            with_paper_forms("layer-norms", "norms"),
            with_paper_forms("gelu", "activation"),
            with_paper_forms("all-tokens", "tokens"),
            with_paper_forms("wide-queries", "queries"),
            Recipe(name="no-layer-norm", settings=("model.layer_norms=[]",)),
        ),
    ),
    Experiment(
        name="found",
        mirrors="Not in the paper: networks of a search over every choice, within seconds",
        about="networks that one search finds within three budgets of seconds, beside the "
        "paper's norms and GeLU with two kinds of attention, on labels alone",
        networks=(
            with_paper_forms("paper-relu_softmax", kind=RELU_SOFTMAX),
            with_paper_forms("paper-scaling", kind=SCALING),
            *map(found, (1.3, 1.5, 2.0)),
        ),
    ),
)


def find_experiment(name: str) -> Experiment:
    by_name = {experiment.name: experiment for experiment in EXPERIMENTS}
    if name not in by_name:
        raise UserError(f"there is no experiment {name!r}; {nearest(name, list(by_name))}")
    return by_name[name]

"""Recipes: how each network of the paper's comparisons is found and trained."""

from dataclasses import dataclass

from mpcvit.artifacts.architecture import MlpForm
from mpcvit.kinds.table import Kind
from mpcvit.search.derive import DEFAULT_GELU_THRESHOLD


@dataclass(frozen=True, kw_only=True)
class SearchRecipe:
    """A search; one serves all the architectures derived from it."""

    name: str
    settings: tuple[str, ...] = ()
    heads: int = 0  # of every layer, where not the configuration's


@dataclass(frozen=True, kw_only=True)
class Derivation:
    """A rule that takes an architecture from a search: by a ratio of heads, or by seconds."""

    search: SearchRecipe
    ratio: float = 1.0
    budget_s: float | None = None  # in place of the ratio
    per_layer: bool = False
    mlp_form: MlpForm | None = None  # of tokens without GeLU, where the search weighs GeLU
    gelu_threshold: float = DEFAULT_GELU_THRESHOLD  # sigma: a token of a larger beta keeps GeLU


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One network of a table.

    Its architecture is derived from a search, or `settings` name it. With a
    `teacher` it is trained by distillation, otherwise on labels alone.
    """

    name: str
    settings: tuple[str, ...] = ()
    heads: int = 0  # of every layer, where not the configuration's
    derivation: Derivation | None = None
    teacher: "Recipe | None" = None


SOFTMAX = Recipe(name="softmax", settings=("model.attention=softmax",))
HEAD_SEARCH = SearchRecipe(name="search")


def plain(kind: Kind, *, distilled: bool = False) -> Recipe:
    """Return the network with the same attention kind in every head."""
    if kind.name == SOFTMAX.name and not distilled:
        return SOFTMAX
    return Recipe(
        name=kind.value + "-distilled" * distilled,
        settings=(f"model.attention={kind.value}",),
        teacher=SOFTMAX if distilled else None,
    )


def linformer(ratio: float) -> Recipe:
    return Recipe(
        name=f"linformer-{ratio}",
        settings=("model.attention=linformer", f"model.linformer_ratio={ratio}"),
    )


def mpcformer(*, distilled: bool = False, quad_gelu: bool = False) -> Recipe:
    """2Quad attention; its authors distil, and replace GeLU by a parabola too."""
    settings = ("model.attention=quad2",)
    return Recipe(
        name="mpcformer" + "-quad" * quad_gelu + "-distilled" * distilled,
        settings=(*settings, "model.activation=quad") if quad_gelu else settings,
        teacher=SOFTMAX if distilled else None,
    )


def the_x(*, whole: bool = False) -> Recipe:
    """Estimated softmax; `whole` with its ReLU for GeLU and its linear norm too."""
    if not whole:
        return Recipe(name="the_x", settings=("model.attention=the_x",))
    return Recipe(
        name="the_x-whole",
        settings=("model.attention=the_x", "model.activation=relu", "model.norm=linear"),
    )


def mpcvit(
    ratio: float,
    *,
    distilled: bool = False,
    search: SearchRecipe = HEAD_SEARCH,
    per_layer: bool = False,
    mlp_form: MlpForm | None = None,
    gelu_threshold: float = DEFAULT_GELU_THRESHOLD,
    settings: tuple[str, ...] = (),
    label: str = "",
) -> Recipe:
    """Heads chosen by a search at a ratio; `label` tells one kind of search from another."""
    stem, end = label or ("per-layer" if per_layer else "mpcvit"), "-distilled" * distilled
    return Recipe(
        name=f"{stem}-{ratio}{end}",
        settings=settings,
        derivation=Derivation(
            search=search,
            ratio=ratio,
            per_layer=per_layer,
            mlp_form=mlp_form,
            gelu_threshold=gelu_threshold,
        ),
        teacher=SOFTMAX if distilled else None,
    )


def within(budget_s: float, *, mlp_form: MlpForm | None = None) -> Recipe:
    """Return a distilled network of the heads with the largest alpha within a budget of seconds."""
    derivation = Derivation(search=HEAD_SEARCH, budget_s=budget_s, mlp_form=mlp_form)
    return Recipe(
        name=f"mpcvit-{budget_s:g}s-distilled",
        derivation=derivation,
        teacher=SOFTMAX,
    )


def searched(label: str, *settings: str) -> SearchRecipe:
    return SearchRecipe(name=f"search-{label}", settings=settings)


def pruned(heads: int) -> Recipe:
    """Fewer heads, all of ReLU softmax."""
    return Recipe(
        name=f"pruned-{heads}",
        settings=("model.attention=relu_softmax",),
        heads=heads,
    )

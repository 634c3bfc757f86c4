"""Recipes: how each network of the paper's comparisons is found and trained."""

from dataclasses import dataclass

from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.config import ModelConfig
from mpcvit.codec import encode, spell
from mpcvit.kinds.table import Kind
from mpcvit.search.derive import DEFAULT_GELU_THRESHOLD


@dataclass(frozen=True, kw_only=True)
class SearchRecipe:
    """A search; one serves all the architectures derived from it."""

    name: str
    settings: tuple[str, ...] = ()
    heads: int = 0  # of every layer, where not the configuration's
    start: "Recipe | None" = None  # whose weights it begins with, where not the store's start


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

    Its architecture is given, or derived from a search, or `settings` name it. With a
    `teacher` it is trained by distillation, otherwise on labels alone.
    """

    name: str
    settings: tuple[str, ...] = ()
    heads: int = 0  # of every layer, where not the configuration's
    architecture: Architecture | None = None
    derivation: Derivation | None = None
    teacher: "Recipe | None" = None
    start: "Recipe | None" = None  # whose weights it begins with, where not the store's start


SOFTMAX = Recipe(name="softmax", settings=("model.attention=softmax",))
SEARCH = SearchRecipe(name="search")  # as the configuration says


def fine_tuned(model: ModelConfig, architecture: Architecture) -> Recipe:
    """Return a trained network that goes on learning as it is, whatever its students become."""
    document = encode(model)
    kept = ("norm", "layer_norms", "clip", "activation", "layer_tokens")
    return Recipe(
        name="fine-tuned",
        settings=tuple(f"model.{key}={spell(document[key])}" for key in kept),
        architecture=architecture,
    )


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
    """Return THE-X's estimated softmax; `whole` adds its ReLU for GeLU and its linear norm."""
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
    search: SearchRecipe = SEARCH,
    per_layer: bool = False,
    mlp_form: MlpForm | None = None,
    gelu_threshold: float = DEFAULT_GELU_THRESHOLD,
    label: str = "",
) -> Recipe:
    """Return heads chosen by a search at a ratio; `label` tells one kind of search from another."""
    stem, end = label or ("per-layer" if per_layer else "mpcvit"), "-distilled" * distilled
    return Recipe(
        name=f"{stem}-{ratio}{end}",
        derivation=Derivation(
            search=search,
            ratio=ratio,
            per_layer=per_layer,
            mlp_form=mlp_form,
            gelu_threshold=gelu_threshold,
        ),
        teacher=SOFTMAX if distilled else None,
    )


def within(
    budget_s: float, *, search: SearchRecipe = SEARCH, mlp_form: MlpForm | None = None
) -> Recipe:
    """Return a distilled network of the heads with the largest alpha within a budget of seconds."""
    derivation = Derivation(search=search, budget_s=budget_s, mlp_form=mlp_form)
    name = f"mpcvit-{budget_s:g}s-distilled"
    return Recipe(name=name, derivation=derivation, teacher=SOFTMAX)


def found(budget_s: float) -> Recipe:
    """Return a network on labels alone, of the choices that are worth most within seconds."""
    derivation = Derivation(search=SEARCH, budget_s=budget_s)
    return Recipe(name=f"found-{budget_s:g}s", derivation=derivation)


def searched(label: str, *settings: str) -> SearchRecipe:
    return SearchRecipe(name=f"search-{label}", settings=settings)


def pruned(heads: int) -> Recipe:
    """Return a network of fewer heads, all of ReLU softmax."""
    return Recipe(
        name=f"pruned-{heads}",
        settings=("model.attention=relu_softmax",),
        heads=heads,
    )


_PAPER_FORMS = {
    "norms": ("model.norm=layer", "model.layer_norms=[]", "model.clip=0.0"),
    "activation": ("model.activation=gelu",),
    "tokens": ("model.layer_tokens=[]",),
    "queries": ("model.head_dim_qk=0",),
}


def with_paper_forms(name: str, *parts: str, kind: Kind | None = None) -> Recipe:
    """Return the configured network with some of its parts as in the paper's networks.

    Without parts, every part is the paper's, and `kind` is the attention of every head.
    """
    settings = (setting for part in parts or _PAPER_FORMS for setting in _PAPER_FORMS[part])
    attention = () if kind is None else (f"model.attention={kind.value}",)
    return Recipe(name=name, settings=(*settings, *attention))

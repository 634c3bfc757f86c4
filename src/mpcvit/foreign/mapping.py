"""The one engine that turns named tensors into this project's parameters.

A layout is a table: for each parameter of ours, which tensors it is made of,
their shape, and the change of axes. Sizes in shapes are names ("width"); the
first tensor that mentions a size sets it and all later ones must agree.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpcvit.foreign.tensor import Tensor
from mpcvit.foreign.unusable import UnusableError

_FLOATS = frozenset(("float16", "bfloat16", "float32", "float64"))
_LISTED = 8  # names that a message spells out
_LONGEST = 160  # characters of one of them

# What other networks have and this one has not, by the names of its tensors.
_FEATURES = {
    r"dist(illation)?_": "a distillation token",
    r"reg(ister)?_token": "register tokens",
    r"\.ls\d|layer_scale|gamma_\d": "layer scale",
    r"[qk]_norm": "norms of queries and keys",
    r"attn_pool|attention_pool|\.probe": "attention pooling",
    r"fc1_g|w12|weights_in|swiglu": "gated MLPs (SwiGLU)",
    r"rel(ative)?_pos": "relative positions",
    r"rope|freqs": "rotary positions",
    r"^text_model|logit_scale": "a text model",
    r"mask_token": "a mask token",
    r"attn\.norm|mlp\.norm|conv|downsample": "other parts than a plain ViT",
    r"lora_": "adapters (LoRA)",
    r"\.SCB$|\.absmax$|\.quant_": "quantised weights",
    r"\.attns\.|\.in_proj\.": "attention and MLP side by side",
    r"\.lambda_": "differential attention",
}

# What other networks do without, by the names of its tensors.
_LACKING = {
    r"norm\d?\.bias$": "norms without biases (RMS norm)",
    r"(proj|dense|fc\d)\.bias$": "linears without biases",
    r"pos(ition)?_embed": "no positions, or others",
}

Change = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Rule:
    """One parameter of ours. `{n}` stands for a block's number.

    Several tensors are joined along the last axis after the change. An
    optional rule counts once any block has its tensor. Without `shape`, any
    shape will do.
    """

    ours: str
    theirs: tuple[str, ...]
    shape: tuple[str, ...] | None
    change: Change = np.asarray
    optional: bool = False

    def of_block(self, number: int) -> "Rule":
        return Rule(
            self.ours.format(n=number),
            tuple(name.format(n=number) for name in self.theirs),
            self.shape,
            self.change,
        )


@dataclass(frozen=True)
class Layout:
    """A project's names of tensors, and those that it never uses."""

    project: str
    rules: tuple[Rule, ...]
    unused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Matched:
    """Parameters by path ("head/kernel"), and the sizes that their shapes set."""

    parameters: dict[str, np.ndarray]
    sizes: dict[str, int]


def match(tensors: Mapping[str, Tensor], layout: Layout) -> Matched:
    """Consume every tensor by the layout's rules; refuse what is left over or missing."""
    depth = _count_blocks(tensors, layout)
    rules = list(_expand(tensors, layout, depth))
    _require_names(tensors, layout, rules)
    sizes = {"depth": depth, **_unify(tensors, layout, rules)}
    return Matched({rule.ours: _make(tensors, rule) for rule in rules}, sizes)


def nest(parameters: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Turn paths into a tree.

    >>> nest({"head/bias": 1, "head/kernel": 2, "norm/scale": 3})
    {'head': {'bias': 1, 'kernel': 2}, 'norm': {'scale': 3}}
    """
    tree: dict[str, Any] = {}
    for path, array in parameters.items():
        *parents, name = path.split("/")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[name] = array
    return tree


def linear(
    ours: str,
    theirs: str | Sequence[str],
    out: str,
    inputs: str,
    *,
    optional_bias: bool = False,
    optional: bool = False,
) -> tuple[Rule, Rule]:
    """Return rules for the weights [out, inputs] and bias of one linear, or several joined."""
    sources = (theirs,) if isinstance(theirs, str) else tuple(theirs)
    weights = tuple(f"{source}.weight" for source in sources)
    biases = tuple(f"{source}.bias" for source in sources)
    return (
        Rule(f"{ours}/kernel", weights, (out, inputs), np.transpose, optional),
        Rule(f"{ours}/bias", biases, (out,), optional=optional or optional_bias),
    )


def tokens(name: str) -> Rule:
    """Return the rule for register tokens or a distillation token."""
    return Rule("extra_tokens", (name,), ("1", "extra", "width"), lambda rows: rows[0], True)


def norm(ours: str, theirs: str, *, optional: bool = False) -> tuple[Rule, Rule]:
    return (
        Rule(f"{ours}/scale", (f"{theirs}.weight",), ("width",), optional=optional),
        Rule(f"{ours}/bias", (f"{theirs}.bias",), ("width",), optional=optional),
    )


def embedding(
    *,
    patch: str,
    class_token: str | None = None,
    position: str | None = None,
    optional_class_token: bool = False,
    optional_bias: bool = False,
) -> tuple[Rule, ...]:
    """Return rules for patches (as a linear), and for class token and positions if named."""
    rules = [
        Rule(
            "embed/patch/kernel",
            (f"{patch}.weight",),
            ("width", "channels", "patch", "patch"),
            _flatten_patch,
        ),
        Rule("embed/patch/bias", (f"{patch}.bias",), ("width",), optional=optional_bias),
    ]
    if class_token is not None:
        shape, optional = ("1", "1", "width"), optional_class_token
        token = Rule(
            "embed/class_token", (class_token,), shape, lambda token: token[0, 0], optional
        )
        rules.append(token)
    if position is not None:
        shape = ("1", "tokens", "width")
        rules.append(Rule("embed/position", (position,), shape, lambda rows: rows[0]))
    return tuple(rules)


def shorten(names: Collection[str]) -> str:
    """List the first few names, as a terminal may show them.

    >>> shorten([f"block{n}" for n in range(11)])
    'block0, block1, block2, block3, block4, block5, block6, block7 and 3 more'
    >>> print(shorten(["a\\nb"]))
    'a\\nb'
    """
    spelt = (name if name.isprintable() else repr(name) for name in list(names)[:_LISTED])
    shown = ", ".join(name[:_LONGEST] for name in spelt)
    return f"{shown} and {len(names) - _LISTED} more" if len(names) > _LISTED else shown


def _flatten_patch(kernel: np.ndarray) -> np.ndarray:
    """[width, channel, row, column] to [row * column * channel, width]."""
    return kernel.transpose(2, 3, 1, 0).reshape(-1, kernel.shape[0])


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.escape(template).replace(r"\{n\}", "(0|[1-9][0-9]*)"))


def _count_blocks(tensors: Mapping[str, Tensor], layout: Layout) -> int:
    """Return how many numbers occur; a gap then shows as missing and left-over names."""
    patterns = [_pattern(name) for rule in layout.rules for name in rule.theirs if "{n}" in name]
    found = (pattern.fullmatch(name) for pattern in patterns for name in tensors)
    return max(1, len({hit[1] for hit in found if hit}))


def _expand(tensors: Mapping[str, Tensor], layout: Layout, depth: int) -> Iterator[Rule]:
    for rule in layout.rules:
        numbers = range(depth) if "{n}" in rule.ours else range(1)
        own = [rule.of_block(number) for number in numbers]
        if not rule.optional or any(name in tensors for each in own for name in each.theirs):
            yield from own


def _require_names(tensors: Mapping[str, Tensor], layout: Layout, rules: Sequence[Rule]) -> None:
    wanted = dict.fromkeys(name for rule in rules for name in rule.theirs)
    unused = [_pattern(template) for template in layout.unused]
    missing = [name for name in wanted if name not in tensors]
    unexpected = [
        name
        for name in tensors
        if name not in wanted and not any(pattern.fullmatch(name) for pattern in unused)
    ]
    if missing or unexpected:
        problems = (("lacks", missing), ("also has", unexpected))
        listed = "; it ".join(f"{verb} {shorten(names)}" for verb, names in problems if names)
        features, names = (_FEATURES, unexpected) if unexpected else (_LACKING, missing)
        found = [words for pattern, words in features.items() if _any(pattern, names)]
        reason = "is not one that can be read, so take a plain ViT"
        if found:
            reason = f"has {', '.join(found)}, which cannot be read here, so take a plain ViT"
        elif not unexpected:
            reason = "is incomplete, so download or save it again"
        raise UnusableError(f"looks like {layout.project}, but {reason}: it {listed}")


def _any(pattern: str, names: Sequence[str]) -> bool:
    return any(re.search(pattern, name) for name in names)


def _unify(tensors: Mapping[str, Tensor], layout: Layout, rules: Sequence[Rule]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    misfits = []
    for rule in rules:
        if rule.shape is None:
            continue
        for name in rule.theirs:
            shape = tensors[name].shape
            for term, size in zip(rule.shape, shape, strict=False):
                if term.isalpha() and size > 0:
                    sizes.setdefault(term, size)
            expected = tuple(_size(term, sizes) for term in rule.shape)
            if shape != expected:
                misfits.append(f"{name} is {_spell(shape)} instead of {_spell(expected)}")
    if misfits:
        raise UnusableError(
            f"looks like {layout.project}, but shapes do not fit, so download it again or "
            f"take a plain ViT: {shorten(misfits)}"
        )
    return sizes


def _size(term: str, sizes: Mapping[str, int]) -> int | str:
    """Evaluate "width", "1" or "3 width"; a size that nothing set stays a name.

    >>> _size("3 width", {"width": 8}), _size("1", {}), _size("patch", {})
    (24, 1, 'patch')
    """
    if term.isdigit():
        return int(term)
    factor, _, name = term.rpartition(" ")
    return int(factor or 1) * sizes[name] if name in sizes else term


def _spell(shape: Sequence[int | str]) -> str:
    return " x ".join(map(str, shape)) or "a single number"


def _make(tensors: Mapping[str, Tensor], rule: Rule) -> np.ndarray:
    parts = [rule.change(_read_floats(tensors[name], name)) for name in rule.theirs]
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
    return np.ascontiguousarray(joined)


def _read_floats(tensor: Tensor, name: str) -> np.ndarray:
    if tensor.dtype not in _FLOATS:
        raise UnusableError(
            f"holds {tensor.dtype} numbers in {name}, but only floating-point weights "
            "can be read: save the model in float32, without quantisation"
        )
    with np.errstate(over="ignore"):  # what overflows is refused just below
        numbers = tensor.read().astype(np.float32)
    if not np.isfinite(numbers).all():
        raise UnusableError(
            f"holds values in {name} that are not finite: train or download it again"
        )
    return numbers

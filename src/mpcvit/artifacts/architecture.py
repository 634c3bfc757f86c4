"""Architecture: which attention each head uses, and which MLP keeps its GeLU.

An architecture is plain data. It is saved as readable JSON, validated against
the model it is meant for, and printed as a layers-by-heads picture.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from mpcvit.artifacts.forms import FormChoice, NormForm
from mpcvit.codec import decode, encode
from mpcvit.errors import UserError, nearest
from mpcvit.kinds.table import KINDS, Kind
from mpcvit.storage import read_json, read_text, write_text

FORMAT = "mpcvit-architecture/1"


class MlpForm(str, Enum):
    """A form of an MLP: what stands between and after its two linears.

    `linear*` multiplies by both weights in turn, `fused*` by their product:
    the same function of the same parameters, in fewer products when secure.
    """

    ACTIVATED = "activated"
    LINEAR = "linear"
    LINEAR_RELU = "linear_relu"
    FUSED = "fused"
    FUSED_RELU = "fused_relu"

    @property
    def symbol(self) -> str:
        return _SYMBOLS[self]

    @property
    def keeps_activation(self) -> bool:
        return self is MlpForm.ACTIVATED

    @property
    def is_fused(self) -> bool:
        return self in (MlpForm.FUSED, MlpForm.FUSED_RELU)

    @property
    def ends_in_relu(self) -> bool:
        return self in (MlpForm.LINEAR_RELU, MlpForm.FUSED_RELU)

    @property
    def with_fused_linears(self) -> "MlpForm":
        """The form that computes the same with two linears in a row fused."""
        forms = {MlpForm.LINEAR: MlpForm.FUSED, MlpForm.LINEAR_RELU: MlpForm.FUSED_RELU}
        return forms.get(self, self)


_SYMBOLS = {
    MlpForm.ACTIVATED: "g",
    MlpForm.LINEAR: "l",
    MlpForm.LINEAR_RELU: "r",
    MlpForm.FUSED: "f",
    MlpForm.FUSED_RELU: "F",
}
_FORMS = {form.value: form for form in MlpForm}


Rows = tuple[Kind, ...]
HeadChoice = Kind | Rows
MlpChoice = MlpForm | tuple[MlpForm, ...]
Symbolic = TypeVar("Symbolic", Kind, MlpForm)


def kinds_of(choice: HeadChoice) -> frozenset[Kind]:
    """Return every attention kind that some row of a head uses."""
    return frozenset(choice if isinstance(choice, tuple) else (choice,))


@dataclass(frozen=True, kw_only=True)
class LayerArchitecture:
    """One layer: a choice per head, and one for its MLP.

    A choice is one name for all tokens, or a tuple with one name per token. A layer
    may also choose its norms, its activation, and how many tokens it merges to.
    """

    heads: tuple[HeadChoice, ...]
    mlp: MlpChoice = MlpForm.ACTIVATED
    form: FormChoice = field(default_factory=FormChoice)

    @property
    def kinds(self) -> frozenset[Kind]:
        """Every attention kind that some row of this layer uses."""
        return frozenset[Kind]().union(*map(kinds_of, self.heads))

    def of_first(self, tokens: int) -> "LayerArchitecture":
        """Return the choices of its first tokens."""
        return replace(
            self,
            heads=tuple(head[:tokens] if isinstance(head, tuple) else head for head in self.heads),
            mlp=self.mlp[:tokens] if isinstance(self.mlp, tuple) else self.mlp,
        )


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A description of what every head and every MLP of a network computes."""

    layers: tuple[LayerArchitecture, ...]
    norm: NormForm | None = None  # after the last block; None: as the model's configuration says

    @classmethod
    def uniform(
        cls, kind: Kind, *, depth: int, heads: int, mlp: MlpForm = MlpForm.ACTIVATED
    ) -> "Architecture":
        """Return an architecture with the same kind for every head.

        >>> Architecture.uniform(KINDS["scaling"], depth=1, heads=2).layers[0].heads
        (Kind(scaling), Kind(scaling))
        """
        return cls(layers=(LayerArchitecture(heads=(kind,) * heads, mlp=mlp),) * depth)

    def require_depth(self, depth: int) -> None:
        if len(self.layers) != depth:
            raise UserError(
                f"the architecture has {len(self.layers)} layers, but the model has {depth}"
            )

    def validate(self, *, heads: int, tokens: Sequence[int]) -> None:
        """Refuse an architecture for another shape; `tokens` are those of each layer."""
        self.require_depth(len(tokens))
        for index, layer in enumerate(self.layers):
            if len(layer.heads) != heads:
                raise UserError(
                    f"layer {index} of the architecture has {len(layer.heads)} heads, "
                    f"but the model has {heads}"
                )
            for place, choice in (
                *((f"head {h}", head) for h, head in enumerate(layer.heads)),
                ("the MLP", layer.mlp),
            ):
                if isinstance(choice, tuple) and len(choice) != tokens[index]:
                    raise UserError(
                        f"layer {index}, {place} of the architecture chooses for {len(choice)} "
                        f"tokens, but the model has {tokens[index]}"
                    )

    def count(self, kind: Kind) -> float:
        """Return how many heads use a kind; a head mixed over rows counts in part.

        >>> scaling = KINDS["scaling"]
        >>> Architecture.uniform(scaling, depth=3, heads=2).count(scaling)
        6.0
        """
        return sum(
            head.count(kind) / len(head) if isinstance(head, tuple) else float(head is kind)
            for layer in self.layers
            for head in layer.heads
        )

    def picture(self) -> str:
        """Draw layers as lines and heads as letters, with a legend; equal layers share a line.

        What layers choose of norms, activations and tokens stands in words beside them.

        >>> print(Architecture.uniform(KINDS["scaling"], depth=2, heads=3).picture())
        layer  heads  mlp
          0-1  S S S  g
        S = scaling, g = activated
        """
        used: Counter[Kind | MlpForm] = Counter()
        rows: list[str] = []
        width = max(2 * len(layer.heads) - 1 for layer in self.layers)
        names = [
            name
            for name in vars(FormChoice())
            if any(getattr(layer.form, name) is not None for layer in self.layers)
        ]
        for layer in self.layers:
            cells = [_cell(head, used) for head in layer.heads]
            row = f"{' '.join(cells):<{max(5, width)}}  {_cell(layer.mlp, used)}"
            words = (_word(getattr(layer.form, name)) for name in names)
            rows.append("  ".join((f"{row}  " if names else row, *(f"{w:<10}" for w in words))))
        rows = [row.rstrip() for row in rows]
        lines = [f"{layers:>5}  {row}" for layers, row in _collapse(rows)]
        titles = "  ".join(f"{name:<10}" for name in names)
        header = f"layer  {'heads':<{max(5, width)}}  mlp  {titles}".rstrip()
        if self.norm is not None:
            lines.append(f" head  {'':<{max(5, width)}}       {self.norm.value}")
        legend = [f"{name.symbol} = {name.value}" for name in sorted(used, key=_legend_order)]
        if any("*" in line for line in lines):
            legend.append("* = mixed over tokens")
        return "\n".join((header, *lines, ", ".join(legend)))

    def digest(self) -> str:
        """Return a short name for exactly this architecture."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        layers = [
            {
                "attention": [_encode(head) for head in layer.heads],
                "mlp": _encode(layer.mlp),
                **{name: own for name, own in encode(layer.form).items() if own is not None},
            }
            for layer in self.layers
        ]
        lines = ",\n    ".join(json.dumps(layer) for layer in layers)
        norm = "" if self.norm is None else f',\n  "norm": "{self.norm.value}"'
        return f'{{\n  "format": "{FORMAT}",\n  "layers": [\n    {lines}\n  ]{norm}\n}}\n'

    def save(self, path: Path) -> None:
        write_text(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> "Architecture":
        return cls.decoded(read_json(read_text(path, "architecture"), str(path)), str(path))

    def encoded(self) -> Any:
        """Return the document of an architecture file."""
        return json.loads(self.to_json())

    @classmethod
    def decoded(cls, document: Any, where: str) -> "Architecture":
        """Decode the document of an architecture file; `where` names it in what is refused."""
        found = document.get("format") if isinstance(document, dict) else None
        if found != FORMAT:
            raise UserError(
                f"{where} is not an architecture file: its format is {found!r}, not {FORMAT!r}"
            )
        layers = document.get("layers")
        if not isinstance(layers, list) or not layers:
            raise UserError(f"{where}: 'layers' must be a list with one object per layer")
        decoded = []
        for index, layer in enumerate(layers):
            place = f"{where}: layers[{index}]"
            if not isinstance(layer, dict) or not {"attention", "mlp"} <= set(layer):
                raise UserError(f"{place} must be an object with 'attention' and 'mlp'")
            rest = {name: own for name, own in layer.items() if name not in ("attention", "mlp")}
            decoded.append(
                LayerArchitecture(
                    heads=_decode_heads(layer["attention"], f"{place}.attention"),
                    mlp=_decode_choice(_FORMS, layer["mlp"], f"{place}.mlp"),
                    form=decode(FormChoice, rest, place),
                )
            )
        norm = decode(NormForm, document["norm"], f"{where}: norm") if "norm" in document else None
        return cls(layers=tuple(decoded), norm=norm)


def _legend_order(name: Kind | MlpForm) -> tuple[bool, str]:
    return isinstance(name, MlpForm), name.value


def _collapse(rows: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Give each run of equal rows once, with the numbers of its first and last."""
    first = 0
    for row, run in groupby(rows):
        last = first + len(list(run)) - 1
        yield (str(first) if first == last else f"{first}-{last}"), row
        first = last + 1


def _cell(choice: HeadChoice | MlpChoice, used: Counter[Kind | MlpForm]) -> str:
    names = choice if isinstance(choice, tuple) else (choice,)
    used.update(names)
    distinct = dict.fromkeys(names)
    return names[0].symbol if len(distinct) == 1 else "*"


def _word(choice: Enum | int | None) -> str:
    """Return the word for a form that a layer chooses; a dash leaves it to the model."""
    return "–" if choice is None else str(choice.value if isinstance(choice, Enum) else choice)


def _encode(choice: HeadChoice | MlpChoice) -> Any:
    """Write a tuple over tokens as runs: ["scaling", 3, "relu_softmax", 62]."""
    if not isinstance(choice, tuple):
        return choice.value
    runs: list[Any] = []
    for name in choice:
        if runs and runs[-2] == name.value:
            runs[-1] += 1
        else:
            runs += [name.value, 1]
    return runs


def _decode_heads(value: Any, where: str) -> tuple[HeadChoice, ...]:
    if not isinstance(value, list) or not value:
        raise UserError(f"{where} must be a list with one entry per head")
    return tuple(
        _decode_choice(KINDS, head, f"{where}[{index}]") for index, head in enumerate(value)
    )


def _decode_choice(
    known: Mapping[str, Symbolic], value: Any, where: str
) -> Symbolic | tuple[Symbolic, ...]:
    if isinstance(value, str):
        return _decode_name(known, value, where)
    if not isinstance(value, list) or not value or len(value) % 2:
        raise UserError(
            f"{where} must be a name, or a list of names each followed by its token count"
        )
    decoded: list[Symbolic] = []
    for name, run in zip(value[::2], value[1::2], strict=True):
        if not isinstance(run, int) or isinstance(run, bool) or run < 1:
            raise UserError(f"{where}: {run!r} is not a count of tokens")
        decoded += [_decode_name(known, name, where)] * run
    return tuple(decoded)


def _decode_name(known: Mapping[str, Symbolic], value: Any, where: str) -> Symbolic:
    if not isinstance(value, str) or value not in known:
        raise UserError(f"{where}: unknown {value!r}; {nearest(str(value), list(known))}")
    return known[value]

"""SecureProgram: a lowered network on disk; a folder of public numbers and secret weights.

`program.json` holds what both parties may know, and how the program came to be;
`weights.safetensors` is the model owner's alone.
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors.numpy import save_file

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import DataConfig, ModelConfig
from mpcvit.artifacts.provenance import Provenance
from mpcvit.artifacts.resolve import validate
from mpcvit.codec import decode, encode
from mpcvit.data import make_inputs
from mpcvit.dealer.script import Scripts, scripts_from_plain, scripts_to_plain
from mpcvit.errors import UserError
from mpcvit.lowering.engine import DESCRIPTION, EngineChoice
from mpcvit.lowering.fold import Weights, weight_shapes
from mpcvit.lowering.functions import Functions, functions_of
from mpcvit.lowering.network import forward
from mpcvit.lowering.plan import Plan
from mpcvit.lowering.strays import Counts, guard, watch
from mpcvit.lowering.values import in_fixed_point
from mpcvit.model.checkpoint import Checkpoint, digest, flatten_parameters, read_tensors
from mpcvit.storage import read_json, replacing_folder

FORMAT = "mpcvit-program/2"
_WEIGHTS = "weights.safetensors"


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What a program's stand-ins were chosen by.

    Errors are root mean squares over the logits of the images, in parts of the
    logits' standard deviation.
    """

    images: int
    error_budget: float
    error: float
    engine_reason: str = ""  # where the engine was searched for
    # how much stronger than theirs the contrast of images may be before an interval is left
    reach: float = 1.0
    odd: tuple[str, ...] = ()  # what becomes of odd pictures, as in "flat 128: refused"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Logits of images, and what a program says of them."""

    logits: np.ndarray
    within: np.ndarray  # bool [image]: no stand-in left its interval
    bounded: np.ndarray  # bool [image]: no logit left its bounds
    close: np.ndarray  # bool [image]: another class may be as likely
    is_guarded: bool

    @property
    def trusted(self) -> np.ndarray:
        """What a private run answers; without a guard it knows of the logits alone."""
        return self.bounded & self.within if self.is_guarded else self.bounded


@dataclass(frozen=True, kw_only=True)
class SecureProgram:
    """A network as few exchanges: folded weights, stand-ins, and the engine they are meant for.

    Call it with normalised float32 images, as `preprocess` makes them: the
    plaintext emulation, by the very formulas that SPU runs.
    """

    model: ModelConfig
    architecture: Architecture
    data: DataConfig
    classes: tuple[str, ...]
    plan: Plan
    engine: EngineChoice
    calibration: Calibration
    parameters: Weights
    provenance: Provenance
    scripts: Scripts = field(default_factory=dict)  # what runs will ask of a dealer

    def __post_init__(self) -> None:
        model = self.model
        validate(model, self.architecture)
        if len(self.classes) != model.classes:
            raise UserError("the parts of the program do not fit each other")
        functions_of(self.plan, model, self.architecture)  # refuses a plan that lacks something
        expected = weight_shapes(model, self.architecture)
        if _shapes(self.parameters) != _shapes(expected):
            raise UserError("the weights do not fit the program")

    def __call__(self, images: Any) -> np.ndarray:
        """Logits [batch, classes]."""
        return np.asarray(self._forward(self.parameters, np.asarray(images, np.float32)))

    def in_fixed_point(self, images: Any) -> np.ndarray:
        """Logits with every product rounded as the engine's fixed point rounds it."""
        return self._in_fixed_point(self.parameters, images)

    def strays(self, images: Any) -> dict[str, tuple[int, int]]:
        """For every stand-in how many values lay outside of its interval, and of how many."""
        counts = self._count_strays(self.parameters, np.asarray(images, np.float32))
        return {place: (int(outside), int(total)) for place, (outside, total) in counts.items()}

    def judge(self, images: Any) -> "Judgement":
        """Return logits, whether to trust them, and which are close."""
        logits, slack = self._judge(self.parameters, np.asarray(images, np.float32))
        logits, trust = np.asarray(logits), self.plan.trust
        bound = trust.bound or math.inf
        lead = np.diff(np.sort(logits, axis=1)[:, -2:], axis=1)[:, 0]
        return Judgement(
            logits=logits,
            within=np.asarray(slack) >= 0,
            bounded=np.abs(logits).max(axis=1) <= bound,
            close=lead < trust.doubt,
            is_guarded=trust.guard,
        )

    def preprocess(self, images: Sequence[str | Path | np.ndarray]) -> np.ndarray:
        """Decode, resize and normalise files or uint8 arrays, as in evaluation."""
        return make_inputs(images, self.model, self.data).images

    def logits(self, parameters: Weights, images: jax.Array) -> jax.Array:
        """The emulation as a pure function of its weights."""
        return self._compute(self._functions, parameters, images)

    def _compute(self, functions: Functions, parameters: Weights, images: jax.Array) -> jax.Array:
        return forward(self.model, self.architecture, functions, parameters, images)

    @property
    def _functions(self) -> Functions:
        return functions_of(self.plan, self.model, self.architecture)

    @cached_property
    def _forward(self) -> Callable[..., Any]:
        return jax.jit(self.logits)

    @cached_property
    def _in_fixed_point(self) -> Callable[..., np.ndarray]:
        return in_fixed_point(self.logits, self.engine.fraction_bits)

    @cached_property
    def _judge(self) -> Callable[..., Any]:
        def judge(parameters: Weights, images: jax.Array) -> tuple[jax.Array, jax.Array]:
            functions, slack = guard(self._functions, self.plan.trust)
            logits = self._compute(functions, parameters, images)
            nothing = jnp.full((len(images), 1), jnp.inf)
            # what is no number has left every interval
            least = jnp.concatenate([nothing, *slack], axis=1).min(axis=1)
            return logits, jnp.where(jnp.isnan(least), -jnp.inf, least)

        return jax.jit(judge)

    @cached_property
    def _count_strays(self) -> Callable[..., Any]:
        def count(parameters: Weights, images: jax.Array) -> Counts:
            functions, counts = watch(self._functions)
            self._compute(functions, parameters, images)
            return counts

        return jax.jit(count)

    def digest(self) -> str:
        """A short name for exactly this program."""
        total = hashlib.sha256(json.dumps(self._public(), sort_keys=True).encode())
        total.update(digest(flatten_parameters(self.parameters)).encode())
        return total.hexdigest()[:16]

    def _public(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "model": encode(self.model),
            "architecture": read_json(self.architecture.to_json(), "architecture"),
            "data": encode(replace(self.data, path="")),
            "classes": list(self.classes),
            "plan": self.plan.to_dict(),
            "engine": encode(self.engine),
        }

    def save(self, folder: Path) -> None:
        tensors = flatten_parameters(self.parameters)
        document = {
            **self._public(),
            "calibration": encode(self.calibration),
            "provenance": encode(self.provenance),
            "scripts": scripts_to_plain(self.scripts),
            "weights": digest(tensors),
        }
        with replacing_folder(folder) as temporary:
            text = json.dumps(document, indent=1) + "\n"
            (temporary / DESCRIPTION).write_text(text, encoding="utf-8")
            save_file(tensors, temporary / _WEIGHTS)

    @classmethod
    def load(cls, folder: Path) -> "SecureProgram":
        folder = Path(folder)
        place = folder / DESCRIPTION
        try:
            document = read_json(place.read_text(encoding="utf-8"), str(place))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{folder} holds no program: cannot read {place}") from error
        found = document.get("format") if isinstance(document, dict) else None
        if found != FORMAT:
            raise UserError(
                f"{place} is no program of this version: its format is {found!r}, not {FORMAT!r}; "
                "lower the checkpoint again"
            )
        tensors, _ = read_tensors(folder / _WEIGHTS)
        if digest(tensors) != document.get("weights"):
            raise UserError(f"{folder} is damaged: its weights do not match their digest")
        try:
            return cls(
                model=decode(ModelConfig, document["model"], "model"),
                architecture=Architecture.from_document(document["architecture"], "architecture"),
                data=decode(DataConfig, document["data"], "data"),
                classes=tuple(str(name) for name in document["classes"]),
                plan=Plan.from_dict(document["plan"]),
                engine=decode(EngineChoice, document["engine"], "engine"),
                calibration=decode(Calibration, document["calibration"], "calibration"),
                parameters=unflatten_dict(tensors, sep="."),
                provenance=decode(Provenance, document["provenance"], "provenance"),
                scripts=scripts_from_plain(document.get("scripts", {})),
            )
        except (UserError, TypeError, KeyError, AttributeError, ValueError) as error:
            raise UserError(f"{place} cannot be used: {error}") from error


def _shapes(weights: Weights) -> dict[str, tuple[int, ...]]:
    leaves: dict[str, Any] = flatten_dict(weights, sep=".")
    return {name: tuple(leaf.shape) for name, leaf in leaves.items()}


Model: TypeAlias = Checkpoint | SecureProgram
"""What a model owner brings: a network as it was trained, or as it was lowered."""


def load_model(place: Path) -> Model:
    """A program is a folder, and a checkpoint a file."""
    return SecureProgram.load(place) if place.is_dir() else Checkpoint.load(place)

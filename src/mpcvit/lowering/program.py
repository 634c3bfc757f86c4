"""Programs: a lowered network in a folder, as public numbers and secret weights.

`program.json` holds what both parties may know, and how the program came to be.
`weights.safetensors` belongs to the model owner alone.
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
from mpcvit.artifacts.engine import (
    FORMAT,
    EngineSettings,
    require_format,
    why_no_program,
)
from mpcvit.artifacts.provenance import PROGRAM_FILE, Provenance
from mpcvit.artifacts.resolve import require_reasonable, validate
from mpcvit.codec import decode, encode, register, save
from mpcvit.data import make_inputs
from mpcvit.dealer.script import Script
from mpcvit.errors import UserError
from mpcvit.lowering.fold import Weights
from mpcvit.lowering.jaxpr_walk import in_fixed_point
from mpcvit.lowering.network import forward
from mpcvit.lowering.out_of_range import (
    Trust,
    count_out_of_range,
    guard,
    least_slack,
    watch_together,
)
from mpcvit.lowering.sites import Functions, Plan, require_plan
from mpcvit.model.checkpoint import (
    Checkpoint,
    digest,
    flatten_parameters,
    fuse_linears,
    nest,
    read_tensors,
)
from mpcvit.storage import read_json, replacing_folder, require_own_folder, require_room

Shapes = dict[str, tuple[int, ...]]
_WEIGHTS = "weights.safetensors"
_FILES = (PROGRAM_FILE, _WEIGHTS)
_BATCH = 64  # images that `judge_all` judges at a time
_MOST_SCRIPTS = 16  # that one program carries


@dataclass(frozen=True, kw_only=True)
class PublicProgram:
    """The half that both parties know: shape, architecture, plan, engine, scripts. No weight.

    `plan` and `engine` are None for a network as it was trained. `shapes` are those of
    the weights that the model owner shares, by name.
    """

    model: ModelConfig
    architecture: Architecture
    data: DataConfig
    classes: tuple[str, ...]
    plan: Plan | None
    engine: EngineSettings | None
    trust: Trust = field(default_factory=Trust)
    shapes: Shapes
    scripts: dict[str, Script] = field(default_factory=dict)  # what runs will ask of a dealer

    def __post_init__(self) -> None:
        model = self.model
        require_reasonable(model)
        validate(model, self.architecture)
        if len(self.classes) != model.classes or len(self.data.mean) != model.channels:
            raise UserError("the parts of the program do not fit each other")
        self.data.require_size(model.image_size)
        if any(size < 1 for shape in self.shapes.values() for size in shape):
            raise UserError("the program has an array of weights without a number")
        if len(self.scripts) > _MOST_SCRIPTS:
            raise UserError(f"the program carries more than {_MOST_SCRIPTS} scripts")
        if self.plan is not None:
            require_plan(self.plan, model, self.architecture)

    @classmethod
    def of(cls, model: "Model") -> "PublicProgram":
        """Return the public half of a program, or what others may know of a checkpoint."""
        if isinstance(model, SecureProgram):
            return model.public
        fused = jax.eval_shape(lambda: fuse_linears(model.architecture, model.parameters))
        return cls(
            model=model.model,
            architecture=model.architecture,
            data=replace(model.data, path=""),
            classes=model.classes,
            plan=None,
            engine=None,
            shapes=shapes_of(fused),
        )

    @property
    def weights_like(self) -> Weights:
        """The tree of the weights, with a shape in place of each array."""
        arrays = {
            name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in self.shapes.items()
        }
        return unflatten_dict(arrays, sep=".")

    def digest(self) -> str:
        """Return a name for everything but the scripts."""
        document = encode(replace(self, scripts={}))
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The images and errors by which a program's approximations were chosen.

    Errors are root mean squares over the logits of the images, in parts of the
    logits' standard deviation.
    """

    images: int
    error_budget: float
    error: float
    # how much stronger than theirs the contrast of images may be before an interval is left
    reach: float = 1.0
    leaving: tuple[str, ...] = ()  # labels whose intervals a stronger contrast leaves first
    widening: float = 1.0  # the power to which margins were raised, because images were few
    agreeing: int = 0  # images of the same class in the program and the network
    left: int = 0  # images with a value outside of its interval
    odd: tuple[str, ...] = ()  # what becomes of odd pictures, as in "flat 128: refused"
    guard_cost: str = ""  # what the guard costs, if it was counted


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Logits of images, and what a program says of them."""

    logits: np.ndarray
    within: np.ndarray  # bool [image]: no value left its interval
    bounded: np.ndarray  # bool [image]: no logit left its bounds
    lead: np.ndarray  # float [image]: of the largest logit before the second
    doubt: float
    is_guarded: bool

    @property
    def trusted(self) -> np.ndarray:
        """Whether a private run answers; without a guard it knows of the logits alone."""
        return self.bounded & self.within if self.is_guarded else self.bounded

    @property
    def close(self) -> np.ndarray:
        """Whether another class may be as likely."""
        return self.lead < self.doubt


@register(FORMAT, "program")
@dataclass(frozen=True, kw_only=True)
class Description:
    """The file `program.json`. `weights` is the digest of the secret weights."""

    public: PublicProgram
    calibration: Calibration
    provenance: Provenance
    weights: str


@dataclass(frozen=True, kw_only=True)
class SecureProgram:
    """A network as few exchanges: its public half, folded weights, and where it comes from.

    Call it with normalised float32 images, as `preprocess` makes them: the
    plaintext emulation, by the very formulas that SPU runs.
    """

    public: PublicProgram
    parameters: Weights
    calibration: Calibration
    provenance: Provenance

    def __post_init__(self) -> None:
        if self.public.plan is None or self.public.engine is None:
            raise UserError("a program needs a plan and an engine")
        if shapes_of(self.parameters) != self.public.shapes:
            raise UserError("the weights do not fit the program")

    @property
    def model(self) -> ModelConfig:
        return self.public.model

    @property
    def architecture(self) -> Architecture:
        return self.public.architecture

    @property
    def data(self) -> DataConfig:
        return self.public.data

    @property
    def classes(self) -> tuple[str, ...]:
        return self.public.classes

    @property
    def plan(self) -> Plan:
        assert self.public.plan is not None
        return self.public.plan

    @property
    def engine(self) -> EngineSettings:
        assert self.public.engine is not None
        return self.public.engine

    def changed(self, **public: Any) -> "SecureProgram":
        """Return the program with other values in its public half."""
        return replace(self, public=replace(self.public, **public))

    def __call__(self, images: Any) -> np.ndarray:
        """Return logits [batch, classes]."""
        return np.asarray(self._forward(self.parameters, np.asarray(images, np.float32)))

    def in_fixed_point(self, images: Any) -> np.ndarray:
        """Return logits with every product rounded as the engine's fixed point rounds it."""
        return self._in_fixed_point(self.parameters, images)

    def judge(self, images: Any) -> Judgement:
        """Return logits, whether to trust them, and which are close."""
        return self._judgement(*self._judge(self.parameters, np.asarray(images, np.float32)))

    def judge_and_count(
        self, images: Any, counted: Any = True
    ) -> tuple[Judgement, dict[str, tuple[int, int]]]:
        """Judge images, and count for every label how many values left its interval, of how many.

        `counted` says which images count, so that a batch with fewer needs no compilation.
        """
        *found, counts = self._judge_and_count(self.parameters, np.asarray(images, np.float32))
        which = np.broadcast_to(counted, len(images))
        sums = {label: np.asarray(rows)[which].sum(axis=0) for label, rows in counts.items()}
        totals = {label: (int(outside), int(total)) for label, (outside, total) in sums.items()}
        return self._judgement(*found), totals

    def _judgement(self, found: Any, slack: Any) -> Judgement:
        logits, trust = np.asarray(found), self.public.trust
        bound = trust.bound or math.inf
        return Judgement(
            logits=logits,
            within=np.asarray(slack) >= 0,
            bounded=np.abs(logits).max(axis=1) <= bound,
            lead=np.diff(np.sort(logits, axis=1)[:, -2:], axis=1)[:, 0],
            doubt=trust.doubt,
            is_guarded=trust.guard,
        )

    def judge_all(self, images: np.ndarray) -> Judgement:
        """Judge images in batches of one size, for which the network is compiled once."""
        batches = (images[start : start + _BATCH] for start in range(0, len(images), _BATCH))
        parts = [self.judge(np.resize(batch, (_BATCH, *batch.shape[1:]))) for batch in batches]

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in parts])[: len(images)]

        return replace(
            parts[0],
            logits=joined("logits"),
            within=joined("within"),
            bounded=joined("bounded"),
            lead=joined("lead"),
        )

    def preprocess(self, images: Sequence[str | Path | np.ndarray]) -> np.ndarray:
        """Decode, resize and normalise files or uint8 arrays, as in evaluation."""
        return make_inputs(images, self.model, self.data).images

    def logits(self, parameters: Weights, images: jax.Array) -> jax.Array:
        """Compute the emulation as a pure function of its weights."""
        return self._compute(self.plan, parameters, images)

    def _compute(self, functions: Functions, parameters: Weights, images: jax.Array) -> jax.Array:
        return forward(self.model, self.architecture, functions, parameters, images)

    @cached_property
    def _forward(self) -> Callable[..., Any]:
        return jax.jit(self.logits)

    @cached_property
    def _in_fixed_point(self) -> Callable[..., np.ndarray]:
        return in_fixed_point(self.logits, self.engine.fraction_bits)

    @cached_property
    def _judge(self) -> Callable[..., Any]:
        def judge(parameters: Weights, images: jax.Array) -> tuple[jax.Array, jax.Array]:
            functions, slack = guard(self.plan, self.public.trust)
            return self._compute(functions, parameters, images), least_slack(slack, len(images))

        return jax.jit(judge)

    @cached_property
    def _judge_and_count(self) -> Callable[..., Any]:
        def judge(parameters: Weights, images: jax.Array) -> tuple[Any, ...]:
            guarded, slack = guard(self.plan, self.public.trust)
            counting, counts = count_out_of_range(self.plan)
            functions = watch_together(guarded, counting)
            logits = self._compute(functions, parameters, images)
            return logits, least_slack(slack, len(images)), counts

        return jax.jit(judge)

    def digest(self) -> str:
        """Return a short name for exactly this program."""
        weights = digest(flatten_parameters(self.parameters))
        return hashlib.sha256((self.public.digest() + weights).encode()).hexdigest()[:16]

    def save(self, folder: Path) -> None:
        require_own_folder(Path(folder), _FILES)
        tensors = flatten_parameters(self.parameters)
        description = Description(
            public=self.public,
            calibration=self.calibration,
            provenance=self.provenance,
            weights=digest(tensors),
        )
        with replacing_folder(folder) as temporary:
            save(temporary / PROGRAM_FILE, description)
            save_file(tensors, temporary / _WEIGHTS)

    @classmethod
    def load(cls, folder: Path) -> "SecureProgram":
        folder = Path(folder)
        description = read_description(folder)
        tensors, _ = read_tensors(folder / _WEIGHTS)
        if digest(tensors) != description.weights:
            raise UserError(f"{folder} is damaged: its weights do not match their digest")
        try:
            return cls(
                public=description.public,
                parameters=nest(tensors),
                calibration=description.calibration,
                provenance=description.provenance,
            )
        except UserError as error:
            raise UserError(f"{folder} cannot be used: {error}") from error


def require_place(folder: Path, size_bytes: int) -> None:
    """Refuse early a folder in whose place a program of this size could not be written."""
    require_own_folder(folder, _FILES)
    require_room(folder.absolute().parent, size_bytes)


def read_description(path: Path) -> Description:
    """Read `program.json` of a folder, or a copy of it by itself."""
    file = path / PROGRAM_FILE if path.is_dir() else path
    try:
        document = read_json(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(why_no_program(path)) from error
    except UserError as error:
        raise error if path.is_dir() else UserError(why_no_program(path)) from error
    require_format(document, file)
    return decode(Description, document, str(file))


def shapes_of(weights: Weights) -> Shapes:
    """Return the shape of each array of a tree, by name."""
    leaves: dict[str, Any] = flatten_dict(weights, sep=".")
    return {name: tuple(leaf.shape) for name, leaf in leaves.items()}


Model: TypeAlias = Checkpoint | SecureProgram
"""What a model owner brings: a network as it was trained, or as it was lowered."""


def load_model(path: Path) -> Model:
    """Load a program from a folder, or a checkpoint from a file."""
    return SecureProgram.load(path) if path.is_dir() else Checkpoint.load(path)

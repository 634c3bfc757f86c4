"""Stages compiled to SPU's bytecode, each kind once, and kept on disk by content."""

import hashlib
import importlib.metadata
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from spu import libspu
from spu.experimental import make_cached_var

from mpcvit.artifacts.profile import Profile
from mpcvit.errors import UserError
from mpcvit.secure.card import ModelCard
from mpcvit.secure.spu.stages import Stage, parameter_names, stage_network
from mpcvit.storage import cache_folder, replacing

Shape = tuple[int, ...]
Progress = Callable[[int, int], None]

FIRST_USED = "first used"
"""The variable that the outcome of a first use is written to."""

_KERNEL = "kernel"  # the parameters that are right operands of products, by their last name


@dataclass(frozen=True, kw_only=True)
class CompiledStage:
    """Bytecode, and the secret variables that it reads and writes."""

    name: str
    code: bytes
    parameters: dict[str, Shape]
    source: str
    target: str
    slack_sources: tuple[str, ...] = ()  # of the stage that reveals
    slack_target: str | None = None

    def executable(self) -> Any:
        slack = () if self.slack_target is None else (self.slack_target,)
        return libspu.Executable(
            name=self.name.replace(" ", "_"),
            input_names=[*self.parameters, self.source, *self.slack_sources],
            output_names=[self.target, *slack],
            code=self.code,
        )


@dataclass(frozen=True, kw_only=True)
class Program:
    """A whole network for one batch size."""

    stages: tuple[CompiledStage, ...]
    input_shape: Shape
    output_shape: Shape
    notes: tuple[str, ...]
    kernels: tuple[str, ...]  # parameters whose masks are reused, in the order of first uses

    @property
    def parameters(self) -> dict[str, Shape]:
        return {name: shape for stage in self.stages for name, shape in stage.parameters.items()}

    def digest(self) -> str:
        total = hashlib.sha256()
        for stage in self.stages:
            slack = f"{stage.slack_sources}:{stage.slack_target}"
            head = f"{stage.name}:{stage.parameters}:{stage.source}:{stage.target}:{slack}:"
            total.update(head.encode())
            total.update(hashlib.sha256(stage.code).digest())
        return total.hexdigest()[:16]


def compile_network(
    card: ModelCard, profile: Profile, batch: int, progress: Progress = lambda done, total: None
) -> Program:
    """Compile every stage of a model for a batch size. Needs no weights.

    Parties that are threads of one process trace a network once between them.
    """
    key = (card.public.digest(), card.reveal, profile, batch)
    with _one_at_a_time:
        program = _programs.pop(key, None) or _compile_stages(card, profile, batch, progress)
        _programs[key] = program
        while len(_programs) > _MOST_PROGRAMS:
            del _programs[next(iter(_programs))]
    progress(len(program.stages), len(program.stages))
    return program


_MOST_PROGRAMS = 8  # a process keeps in memory; the oldest goes first
_programs: dict[Any, Program] = {}
_one_at_a_time = threading.Lock()


def _compile_stages(card: ModelCard, profile: Profile, batch: int, progress: Progress) -> Program:
    network = stage_network(card, profile)
    reuse = profile.reuse_weight_masks
    model = card.model
    shape = (batch, model.image_size, model.image_size, model.channels)
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    stages: list[CompiledStage] = []
    slack: dict[str, Any] = {}  # what stages have given, by the names of its secrets
    for index, stage in enumerate(network.stages):
        parameters = stage.parameters(network.parameters)
        leaves = jax.tree.leaves(parameters)
        function = _reusing_masks(stage) if reuse else stage.function
        taken = slack if stage.takes_slack else {}
        code = compile_function(function, parameters, x, *taken.values())
        names = parameter_names(parameters)
        slack_target = f"slack.{index}" if stage.gives_slack else None
        stages.append(
            CompiledStage(
                name=stage.name,
                code=code,
                parameters={
                    name: tuple(leaf.shape) for name, leaf in zip(names, leaves, strict=True)
                },
                source=f"activation.{index}",
                target=f"activation.{index + 1}",
                slack_sources=tuple(taken),
                slack_target=slack_target,
            )
        )
        x = jax.eval_shape(stage.function, parameters, x, *taken.values())
        if slack_target is not None:
            x, slack[slack_target] = x
        progress(index + 1, len(network.stages))
    names = (name for stage in stages for name in stage.parameters)
    return Program(
        stages=tuple(stages),
        input_shape=shape,
        output_shape=tuple(x.shape),
        notes=network.notes,
        kernels=tuple(name for name in names if reuse and name.endswith(f".{_KERNEL}")),
    )


def first_use(kernel: str, shape: Shape) -> Any:
    """Return what must run once with a kernel before any product does.

    It must be elementwise. SPU 0.9.5 draws a mask that is to be reused, and does
    not move its counter for it, if its first use is a product of matrices: what
    comes next would be masked by the same numbers. Nobody looks at the outcome.
    """

    def square(weights: Any) -> Any:
        marked: Any = make_cached_var(weights)
        return marked * marked

    return libspu.Executable(
        name="first_use",
        input_names=[kernel],
        output_names=[FIRST_USED],
        code=compile_function(square, jax.ShapeDtypeStruct(shape, jnp.float32)),
    )


def _reusing_masks(stage: Stage) -> Callable[[Any, Any], Any]:
    """Return a stage whose products open no kernel, once `first_use` has."""

    def mark(path: Any, leaf: Any) -> Any:
        return make_cached_var(leaf) if path[-1].key == _KERNEL else leaf

    def function(parameters: Any, *x: Any) -> Any:
        return stage.function(jax.tree_util.tree_map_with_path(mark, parameters), *x)

    return function


def compile_function(function: Callable[..., Any], *arguments: Any) -> bytes:
    """SPU's bytecode of a JAX function whose arguments are all secret."""

    def stage(*arguments: Any) -> Any:  # one name for all, as names get into the bytecode
        return function(*arguments)

    # the dialect without any platform's custom calls, which SPU would not know
    lowered = (
        jax.jit(stage, keep_unused=True)
        .trace(*arguments)
        .lower(lowering_platforms=("interpreter",))
    )
    # arguments are named in the text by position, so identical blocks have one text
    key = hashlib.sha256("\n".join((lowered.as_text(), *_versions())).encode()).hexdigest()
    secrets = len(jax.tree.leaves(arguments))
    hlo: Any = lowered.compiler_ir("hlo")
    return _compiled(key, secrets, lambda: hlo.as_serialized_hlo_module_proto())


_in_memory: dict[str, bytes] = {}


def _compiled(key: str, secrets: int, hlo: Callable[[], bytes]) -> bytes:
    if key not in _in_memory:
        path = cache_folder() / "compiled" / f"{key}.pphlo"
        _in_memory[key] = _read(path) or _compile(path, secrets, hlo())
    return _in_memory[key]


def _compile(path: Path, secrets: int, hlo: bytes) -> bytes:
    source = libspu.CompilationSource(
        libspu.SourceIRType.XLA, hlo, [libspu.Visibility.VIS_SECRET] * secrets
    )
    code = libspu.compile(source, libspu.CompilerOptions())
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(hashlib.sha256(code).digest() + code)
    except UserError:
        pass  # where nothing can be kept, the next run compiles again
    return code


def _read(path: Path) -> bytes | None:
    """Return what was kept, unless it is absent or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:32], content[32:]
    return code if hashlib.sha256(code).digest() == digest else None


@cache
def _versions() -> tuple[str, ...]:
    return tuple(importlib.metadata.version(package) for package in ("spu", "jax", "jaxlib"))

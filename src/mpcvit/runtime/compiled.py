"""Stages compiled to SPU's bytecode, each kind once, and kept on disk by content."""

import hashlib
import importlib.metadata
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from spu import libspu
from spu.experimental import make_cached_var

from mpcvit.data.cache import default_folder
from mpcvit.errors import UserError
from mpcvit.profile import Profile
from mpcvit.runtime.card import ModelCard
from mpcvit.runtime.stages import Stage, parameter_names, stage_network
from mpcvit.storage import replacing

Shape = tuple[int, ...]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class CompiledStage:
    """Bytecode, and the secret variables that it reads and writes."""

    name: str
    code: bytes
    parameters: dict[str, Shape]
    source: str
    target: str

    def executable(self) -> Any:
        return libspu.Executable(
            name=self.name.replace(" ", "_"),
            input_names=[*self.parameters, self.source],
            output_names=[self.target],
            code=self.code,
        )


@dataclass(frozen=True, kw_only=True)
class Program:
    """A whole network for one batch size."""

    stages: tuple[CompiledStage, ...]
    input_shape: Shape
    output_shape: Shape
    notes: tuple[str, ...]

    @property
    def parameters(self) -> dict[str, Shape]:
        return {name: shape for stage in self.stages for name, shape in stage.parameters.items()}

    def digest(self) -> str:
        total = hashlib.sha256()
        for stage in self.stages:
            head = f"{stage.name}:{stage.parameters}:{stage.source}:{stage.target}:"
            total.update(head.encode())
            total.update(hashlib.sha256(stage.code).digest())
        return total.hexdigest()[:16]


def compile_network(
    card: ModelCard, profile: Profile, batch: int, progress: Progress = lambda done, total: None
) -> Program:
    """Compile every stage of a model for a batch size. Needs no weights.

    Parties that are threads of one process trace a network once between them.
    """
    # all that a card says, but for the scripts, which are made from what is compiled
    public = (getattr(card, one.name) for one in fields(card) if one.name != "scripts")
    key = (*public, profile, batch)
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
    model = card.model
    shape = (batch, model.image_size, model.image_size, model.channels)
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    stages = []
    for index, stage in enumerate(network.stages):
        parameters = stage.parameters(network.parameters)
        leaves = jax.tree.leaves(parameters)
        function = _reusing_masks(stage) if profile.reuse_weight_masks else stage.function
        code = compile_function(function, parameters, x)
        names = parameter_names(parameters)
        stages.append(
            CompiledStage(
                name=stage.name,
                code=code,
                parameters={
                    name: tuple(leaf.shape) for name, leaf in zip(names, leaves, strict=True)
                },
                source=f"activation.{index}",
                target=f"activation.{index + 1}",
            )
        )
        x = jax.eval_shape(stage.function, parameters, x)
        progress(index + 1, len(network.stages))
    return Program(
        stages=tuple(stages),
        input_shape=shape,
        output_shape=tuple(x.shape),
        notes=network.notes,
    )


def _reusing_masks(stage: Stage) -> Callable[[Any, Any], Any]:
    """A stage whose products open each kernel once, however often it runs on one runtime."""

    def mark(path: Any, leaf: Any) -> Any:
        return make_cached_var(leaf) if path[-1].key == "kernel" else leaf

    def function(parameters: Any, x: Any) -> Any:
        return stage.function(jax.tree_util.tree_map_with_path(mark, parameters), x)

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
        path = default_folder() / "compiled" / f"{key}.pphlo"
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
    """What was kept, unless it is absent or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:32], content[32:]
    return code if hashlib.sha256(code).digest() == digest else None


@cache
def _versions() -> tuple[str, ...]:
    return tuple(importlib.metadata.version(package) for package in ("spu", "jax", "jaxlib"))

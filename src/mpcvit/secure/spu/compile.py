"""Networks compiled to SPU's bytecode: a program once for all runs, and a kind of block once."""

import hashlib
import importlib.metadata
import json
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from spu import libspu
from spu.experimental import make_cached_var

from mpcvit.artifacts.profile import Profile
from mpcvit.codec import decode, encode
from mpcvit.errors import UserError
from mpcvit.secure.card import ModelCard
from mpcvit.secure.made_once import MadeOnce, Progress
from mpcvit.secure.spu.rewrite import Constant, only_squares, rewrite, shapes_of
from mpcvit.secure.spu.stages import Stage, parameter_names, stage_network

Shape = tuple[int, ...]

FIRST_USED = "first used"
"""The variable that the outcome of a first use is written to."""

NOISE = "noise"
"""The variable that holds numbers which nobody knows."""

_KERNEL = "kernel"  # the parameters that are right operands of products, by their last name


@dataclass(frozen=True, kw_only=True)
class CompiledStage:
    """Bytecode, the secret variables that it reads and writes, and the constants that it reads."""

    name: str
    code: str
    parameters: dict[str, Shape]
    source: str
    target: str
    constants: tuple[Constant, ...] = ()
    slack_sources: tuple[str, ...] = ()  # of the stage that reveals
    slack_target: str | None = None
    noise: Shape | None = None  # of the numbers that it hides an answer with

    @property
    def read_once(self) -> tuple[str, ...]:
        """The variables that nothing reads after this stage."""
        noise = () if self.noise is None else (NOISE,)
        return (self.source, *self.slack_sources, *noise)

    def executable(self) -> Any:
        slack = () if self.slack_target is None else (self.slack_target,)
        constants = (constant.name for constant in self.constants)
        return libspu.Executable(
            name=self.name.replace(" ", "_"),
            input_names=[*self.parameters, *self.read_once, *constants],
            output_names=[self.target, *slack],
            code=self.code.encode(),
        )


@dataclass(frozen=True, kw_only=True)
class Program:
    """A whole network for one batch size."""

    stages: tuple[CompiledStage, ...]
    shapes: dict[str, Shape]  # of what stages read from stages before them
    output_shape: Shape
    notes: tuple[str, ...]
    kernels: tuple[str, ...]  # parameters whose masks are reused, in the order of first uses

    @property
    def input_shape(self) -> Shape:
        return self.shapes[self.stages[0].source]

    @property
    def parameters(self) -> dict[str, Shape]:
        return {name: shape for stage in self.stages for name, shape in stage.parameters.items()}

    @property
    def constants(self) -> dict[str, np.ndarray]:
        return {own.name: own.array for stage in self.stages for own in stage.constants}

    def digest(self) -> str:
        total = hashlib.sha256()
        for stage in self.stages:
            slack = f"{stage.slack_sources}:{stage.slack_target}:{stage.noise}"
            constants = [constant.name for constant in stage.constants]
            head = f"{stage.name}:{stage.parameters}:{stage.source}:{stage.target}:{slack}:"
            total.update(f"{head}{constants}:".encode())
            total.update(hashlib.sha256(stage.code.encode()).digest())
        return total.hexdigest()[:16]

    def to_bytes(self) -> bytes:
        return zlib.compress(json.dumps(encode(self)).encode())

    @classmethod
    def from_bytes(cls, content: bytes) -> "Program":
        return decode(cls, json.loads(zlib.decompress(content)), "the compiled program")


def compile_network(
    card: ModelCard, profile: Profile, batch: int, progress: Progress = lambda done, total: None
) -> Program:
    """Compile every stage of a model for a batch size. Needs no weights.

    Parties that are threads of one process trace a network once between them. Later runs
    read the program from disk.
    """
    key = _key(card, profile, batch)
    with _one_at_a_time:
        program = _programs.pop(key, None) or _read_program(key)
        if program is None:
            program = _compile_stages(card, profile, batch, progress)
            _kept_programs.keep(key, program.to_bytes())
        else:
            progress(1, 1)
        _programs[key] = program
        while len(_programs) > _MOST_PROGRAMS:
            del _programs[next(iter(_programs))]
    return program


_MOST_PROGRAMS = 8  # a process keeps in memory; the oldest goes first
_programs: dict[str, Program] = {}
_one_at_a_time = threading.Lock()
_kept_programs = MadeOnce("programs")
_kept_code = MadeOnce("compiled")


def _key(card: ModelCard, profile: Profile, batch: int) -> str:
    """Return a name of all that a program depends on."""
    settings = profile.shared_settings()
    parts = [card.public.digest(), card.reveal.value, settings, batch, _OWN_TEXT, *_versions()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _read_program(key: str) -> Program | None:
    content = _kept_programs.find(key)
    try:
        return None if content is None else Program.from_bytes(content)
    except (UserError, ValueError, zlib.error):
        return None


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A function as SPU's compiler takes it, and a name of its content."""

    key: str
    hlo: Callable[[], bytes]
    secrets: int
    publics: int

    def compile(self) -> bytes:
        secret, public = libspu.Visibility.VIS_SECRET, libspu.Visibility.VIS_PUBLIC
        inputs = [secret] * self.secrets + [public] * self.publics
        source = libspu.CompilationSource(libspu.SourceIRType.XLA, self.hlo(), inputs)
        return libspu.compile(source, libspu.CompilerOptions())


def _compile_stages(card: ModelCard, profile: Profile, batch: int, progress: Progress) -> Program:
    """Trace all stages, then compile what differs. Half of the progress is for either."""
    network = stage_network(card, profile)
    reuse = profile.reuse_weight_masks
    model, count = card.model, len(network.stages)
    x: Any = jax.ShapeDtypeStruct(
        (batch, model.image_size, model.image_size, model.channels), jnp.float32
    )
    traced: list[tuple[CompiledStage, _Source]] = []
    by_products: dict[str, Callable[[], _Source]] = {}  # the same without squares
    known: dict[str, Any] = {"activation.0": x}  # what stages read of others
    slack: list[str] = []
    for index, stage in enumerate(network.stages):
        parameters = stage.parameters(network.parameters)
        leaves = jax.tree.leaves(parameters)
        function = _reusing_masks(stage) if reuse else stage.function
        taken = slack if stage.takes_slack else []
        given = (x, *(known[name] for name in taken))
        noise = None if stage.count_noise is None else (batch, stage.count_noise(*given))
        if noise is not None:
            given = (*given, jax.ShapeDtypeStruct(noise, jnp.float32))
        arguments = (parameters, *given)
        source, constants, x = _trace_stage(stage, function, arguments, profile.squares)
        by_products[source.key] = partial(_trace_products, stage, function, arguments)
        names = parameter_names(parameters)
        own = CompiledStage(
            name=stage.name,
            code="",
            parameters={name: tuple(leaf.shape) for name, leaf in zip(names, leaves, strict=True)},
            source=f"activation.{index}",
            target=f"activation.{index + 1}",
            constants=constants,
            slack_sources=tuple(taken),
            slack_target=f"slack.{index}" if stage.gives_slack else None,
            noise=noise,
        )
        if own.slack_target is not None:
            x, known[own.slack_target] = x
            slack.append(own.slack_target)
        known[own.target] = x
        traced.append((own, source))
        progress(index + 1, 2 * count)
    codes = _compile_sources([source for _, source in traced], progress)
    if profile.squares:
        codes |= {
            key: _compile_products(by_products[key]())
            for key, code in codes.items()
            if not only_squares(code.decode())
        }
    stages = [replace(own, code=codes[source.key].decode()) for own, source in traced]
    del known[stages[-1].target]
    names = (name for stage in stages for name in stage.parameters)
    return Program(
        stages=tuple(stages),
        shapes={name: tuple(array.shape) for name, array in known.items()},
        output_shape=tuple(x.shape),
        notes=network.notes,
        kernels=tuple(name for name in names if reuse and name.endswith(f".{_KERNEL}")),
    )


def _trace_stage(
    stage: Stage, function: Callable[..., Any], arguments: tuple[Any, ...], squares: bool
) -> tuple[_Source, tuple[Constant, ...], Any]:
    """Return a stage for the compiler, its constants if they are inputs, and what it gives."""
    traced, given = jax.make_jaxpr(function, return_shape=True)(*arguments)
    flat, constants = rewrite(traced, constants_apart=stage.is_repeated, squares=squares)
    return _source(flat, jax.tree.leaves(arguments), shapes_of(constants)), constants, given


def _trace_products(
    stage: Stage, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> _Source:
    return _trace_stage(stage, function, arguments, squares=False)[0]


def _compile_products(source: _Source) -> bytes:
    """Return bytecode without squares, where the compiler would not leave them alone."""
    code = _compile_sources([source])[source.key]
    if not only_squares(code.decode()):
        raise UserError(
            "a network that computes exp cannot have squares = true in its profile; "
            "'mpcvit lower' makes programs that can"
        )
    return code


def _compile_sources(
    sources: Sequence[_Source], progress: Progress = lambda done, total: None
) -> dict[str, bytes]:
    """Return bytecode by key; progress goes by the stages that have it."""
    count, done, stages = len(sources), len(sources), Counter(own.key for own in sources)
    by_key = {source.key: source for source in sources}
    codes: dict[str, bytes] = {}
    for key, is_absent in _kept_code.each(by_key):
        if is_absent:
            _kept_code.keep(key, by_key[key].compile())
        codes[key] = _kept_code.in_memory[key]
        done += stages[key]
        progress(done, 2 * count)
    return codes


def first_use(kernel: str, shape: Shape) -> Any:
    """Return what must run once with a kernel before any product does.

    It must be elementwise. SPU 0.9.5 draws a mask that is to be reused, and does
    not move its counter for it, if its first use is a product of matrices: what
    comes next would be masked by the same numbers. Nobody looks at the outcome.
    """

    return libspu.Executable(
        name="first_use",
        input_names=[kernel],
        output_names=[FIRST_USED],
        code=_first_use(shape),
    )


@cache
def _first_use(shape: Shape) -> bytes:
    def square(weights: Any) -> Any:
        marked: Any = make_cached_var(weights)
        return marked * marked

    return compile_function(square, jax.ShapeDtypeStruct(shape, jnp.float32))


def _reusing_masks(stage: Stage) -> Callable[[Any, Any], Any]:
    """Return a stage whose products open no kernel, once `first_use` has."""

    def mark(path: Any, leaf: Any) -> Any:
        return make_cached_var(leaf) if path[-1].key == _KERNEL else leaf

    def function(parameters: Any, *x: Any) -> Any:
        return stage.function(jax.tree_util.tree_map_with_path(mark, parameters), *x)

    return function


def compile_function(function: Callable[..., Any], *arguments: Any) -> bytes:
    """Return SPU's bytecode of a JAX function whose arguments are all secret."""
    source = _source(function, arguments, ())
    return _compile_sources([source])[source.key]


def _source(
    function: Callable[..., Any], secrets: Sequence[Any], publics: Sequence[Any]
) -> _Source:
    """Return a function of secret and public arguments for the compiler."""

    def stage(*arguments: Any) -> Any:  # one name for all, as names get into the bytecode
        return function(*arguments)

    # the dialect without any platform's custom calls, which SPU would not know
    lowered = (
        jax.jit(stage, keep_unused=True)
        .trace(*secrets, *publics)
        .lower(lowering_platforms=("interpreter",))
    )
    # arguments are named in the text by position, so identical blocks have one text
    known = (lowered.as_text(), str(len(publics)), *_versions())
    hlo: Any = lowered.compiler_ir("hlo")
    return _Source(
        key=hashlib.sha256("\n".join(known).encode()).hexdigest(),
        hlo=lambda: hlo.as_serialized_hlo_module_proto(),
        secrets=len(jax.tree.leaves(secrets)),
        publics=len(publics),
    )


@cache
def _versions() -> tuple[str, ...]:
    packages = ("spu", "jax", "jaxlib", "flax")
    return tuple(importlib.metadata.version(package) for package in packages)


def _digest_of_package() -> str:
    """Return a digest of this package's text, which decides what programs are made."""
    total, package = hashlib.sha256(), Path(__file__).parents[2]
    for path in sorted(package.rglob("*.py")):
        total.update(path.read_bytes())
    return total.hexdigest()


# as it is imported: a process that runs while the package is replaced computes by the former
_OWN_TEXT = _digest_of_package()

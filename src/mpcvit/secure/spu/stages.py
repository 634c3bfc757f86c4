"""A network cut into stages: embedding, blocks, head, and what is revealed of it.

A stage is a pure function of its own parameters and the activation before it,
made of the very modules that training uses.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.resolve import forms_of, head_norm_of
from mpcvit.kinds.table import Kind
from mpcvit.lowering import network as lowered
from mpcvit.lowering.out_of_range import guard
from mpcvit.lowering.program import Model, PublicProgram, SecureProgram
from mpcvit.lowering.sites import EMBED_NORM, HEAD_NORM, Functions, Plan, site_label
from mpcvit.model.checkpoint import Parameters, fuse_linears
from mpcvit.model.vit import Block, Embed, Head, init_parameters
from mpcvit.secure.card import ModelCard, Opening


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One piece of a network.

    `parts` names the parts of the whole parameter tree that it needs. A stage that
    `gives_slack` returns its activation, and what must not be negative of what it
    met; one that `takes_slack` is given that of all stages before it. One that has
    `count_noise` is given as many numbers of noise for each image as that returns. One that
    `is_repeated` may differ from others in its constants alone.
    """

    name: str
    parts: tuple[str, ...]
    function: Callable[..., Any]
    gives_slack: bool = False
    takes_slack: bool = False
    count_noise: Callable[..., int] | None = None
    is_repeated: bool = False

    def parameters(self, whole: Parameters) -> Parameters:
        return {part: whole[part] for part in self.parts}


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A network as stages, the shapes of all its parameters, and what was changed to fit."""

    stages: tuple[Stage, ...]
    parameters: Parameters
    notes: tuple[str, ...]


def stage_network(card: ModelCard, profile: Profile) -> Staged:
    """Return the stages of a card's network, lowered or as it was trained."""
    reveal = revealing(card.opening(profile.protocol))
    public = card.public
    if public.plan is not None:
        stages = (*cut_lowered(public, public.plan), *reveal)
        return Staged(stages=stages, parameters=public.weights_like, notes=())
    architecture = card.architecture
    config, notes = fit_fixed_point(card.model, architecture, profile)
    return Staged(
        stages=(*cut(config, architecture), *reveal),
        parameters=jax.eval_shape(
            lambda: fuse_linears(architecture, init_parameters(config, architecture, seed=0))
        ),
        notes=notes,
    )


def revealing(opening: Opening) -> tuple[Stage, ...]:
    """Return the stage that turns logits into the answer; none if logits are the answer."""
    if not opening.is_needed:
        return ()

    def apply(parameters: Parameters, logits: Any, *given: Any) -> Any:
        return opening(logits, *given)

    return (
        Stage(
            name="reveal",
            parts=(),
            function=apply,
            takes_slack=opening.trust.guard,
            count_noise=opening.count_noise if opening.takes_noise else None,
        ),
    )


def shared_parameters(model: Model) -> Parameters:
    """Return what a model owner shares: nothing in it is multiplied by another secret weight."""
    if isinstance(model, SecureProgram):
        return model.parameters
    return fuse_linears(model.architecture, model.parameters)


def cut_lowered(public: PublicProgram, plan: Plan) -> tuple[Stage, ...]:
    """Return the stages of a lowered network."""
    config, architecture, trust = public.model, public.architecture, public.trust

    def stage(
        name: str, part: str, prefix: str, run: Callable[[Functions, Parameters, Any], Any]
    ) -> Stage:
        """Return a stage that calls the approximations of a prefix.

        With a guard, it also returns the slack of the values that it met.
        """
        is_guarded = trust.guard and any(
            trust.can_leave(label, approximation)
            for label, approximation in plan.items()
            if label.startswith(prefix)
        )

        def apply(parameters: Parameters, x: Any) -> Any:
            if not is_guarded:
                return run(plan, parameters[part], x)
            functions, slack = guard(plan, trust)
            y = run(functions, parameters[part], x)
            return y, jnp.concatenate(slack, axis=1)

        return Stage(
            name=name,
            parts=(part,),
            function=apply,
            gives_slack=is_guarded,
            is_repeated=part.startswith("blocks_"),
        )

    def of_block(index: int) -> Stage:
        def run(functions: Functions, parameters: Parameters, x: Any) -> Any:
            return lowered.block(config, architecture, index, functions, parameters, x)

        return stage(f"block {index}", f"blocks_{index}", site_label(index, ""), run)

    def embedding(functions: Functions, parameters: Parameters, x: Any) -> Any:
        return lowered.embed(config, architecture, functions, parameters, x)

    def head(functions: Functions, parameters: Parameters, x: Any) -> Any:
        return lowered.head(config, architecture, functions, parameters, x)

    return (
        stage("embedding", "embed", EMBED_NORM, embedding),
        *(of_block(index) for index in range(config.depth)),
        stage("head", "head", HEAD_NORM, head),
    )


def cut(config: ModelConfig, architecture: Architecture) -> tuple[Stage, ...]:
    """Return the stages that together are the network."""

    def of_part(part: str, module: nn.Module, **settings: Any) -> Callable[[Parameters, Any], Any]:
        def apply(parameters: Parameters, x: Any) -> Any:
            y = module.apply({"params": parameters[part]}, x, **settings)
            return y[0] if isinstance(y, tuple) else y

        return apply

    def head(parameters: Parameters, x: Any) -> Any:
        return Head(config, head_norm_of(config, architecture)).apply({"params": parameters}, x)

    blocks = tuple(
        Stage(
            name=f"block {index}",
            parts=(own := f"blocks_{index}",),
            function=of_part(own, Block(config, layer, form), train=False),
        )
        for index, (layer, form) in enumerate(
            zip(architecture.layers, forms_of(config, architecture), strict=True)
        )
    )
    embedding = Stage(name="embedding", parts=("embed",), function=of_part("embed", Embed(config)))
    return (embedding, *blocks, Stage(name="head", parts=("norm", "head"), function=head))


def fit_fixed_point(
    config: ModelConfig, architecture: Architecture, profile: Profile
) -> tuple[ModelConfig, tuple[str, ...]]:
    """Raise every eps that would encode to zero, and say so.

    An eps guards a denominator; encoded to zero it guards nothing, and a row
    without positive scores is divided by zero. The smallest number that fixed
    point can represent takes its place.
    """
    used = frozenset[Kind]().union(*(layer.kinds for layer in architecture.layers))
    of_kinds = (name for kind in sorted(used, key=str) for name in kind.eps_fields)
    names = dict.fromkeys(("norm_eps", *of_kinds))
    changes = {
        name: profile.resolution for name in names if getattr(config, name) < profile.resolution
    }
    notes = tuple(
        f"model.{name} raised from {getattr(config, name):g} to {value:.3g}, "
        f"the smallest number of {profile.fraction_bits} fraction bits"
        for name, value in changes.items()
    )
    return replace(config, **changes), notes


def parameter_names(parameters: Parameters) -> list[str]:
    """Name the tensors of a tree in JAX's order, as checkpoints name them."""
    paths = jax.tree_util.tree_flatten_with_path(parameters)[0]
    return [".".join(str(entry.key) for entry in path) for path, _ in paths]

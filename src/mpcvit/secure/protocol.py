"""One party's side of a private run, from the first message to the answer.

The order is the same for all: agree on versions and profile; learn what the
model looks like and how many images come; compile, and agree on the program;
only then share weights, once, and images, batch by batch. The same code runs
in threads, in processes and on two hosts.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import spu

from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.record import Reveal, StageCost
from mpcvit.codec import decode, encode
from mpcvit.data import make_inputs
from mpcvit.errors import UserError
from mpcvit.lowering.program import Model
from mpcvit.model.checkpoint import flatten_parameters
from mpcvit.secure.card import ModelCard, settled
from mpcvit.secure.dealing.endpoint import DealerEndpoint
from mpcvit.secure.dealing.party import PartyDealing
from mpcvit.secure.errors import PartyError
from mpcvit.secure.memory import peak_bytes
from mpcvit.secure.parties.agreement import Request, Terms, agreement_of, first_difference
from mpcvit.secure.parties.events import (
    Answered,
    Finished,
    InputsMade,
    Prepared,
    Progressed,
    Report,
    Requested,
    StageDone,
    WeightsShared,
    report_progress,
)
from mpcvit.secure.parties.roles import Role
from mpcvit.secure.spu.compile import NOISE, Program, compile_function, compile_network
from mpcvit.secure.spu.engine import Engine
from mpcvit.secure.spu.link import Channel
from mpcvit.secure.spu.stages import shared_parameters

MakeImages = Callable[[ModelCard], np.ndarray]
"""Gives float32 images once the model's shape is known."""

_WARM_UP_SHAPE = (8, 8)


def run_model_owner(
    channel: Channel,
    profile: Profile,
    model: Model,
    report: Report,
    dealer: DealerEndpoint | None = None,
    reveal: Reveal = Reveal.CLASS,
    announced: Request | None = None,
) -> None:
    """Take part as the model owner, who learns how many images came, and nothing else.

    `announced` is what the data owner was admitted with; it may not ask for more.
    """
    session = Session(channel, profile, report, dealer)
    session.agree_on_terms()
    card = ModelCard.of(model, reveal)
    _ = card.opening()  # refused before anyone is asked
    for peer in channel.peers:
        channel.send_json(peer, card.to_dict())
    request = read_request(channel.receive_json(Role.DATA_OWNER))
    if announced is not None and request != announced:
        raise PartyError("the data owner asks for other images than it was admitted with")
    session.prepare(card, request)
    session.share_weights(flatten_parameters(shared_parameters(model)))
    for batch in request.batches:
        session.infer(batch)
    session.finish()


def run_data_owner(
    channel: Channel,
    profile: Profile,
    make_images: MakeImages,
    batch_size: int,
    report: Report,
    dealer: DealerEndpoint | None = None,
) -> None:
    """Take part as the data owner, who learns the answers and the model's public half.

    The answers for a batch are reported as soon as they are there.
    """
    session = Session(channel, profile, report, dealer)
    session.agree_on_terms()
    card = ModelCard.from_dict(channel.receive_json(Role.MODEL_OWNER))
    images = make_images(card)
    request = Request(images=len(images), batch_size=min(batch_size, len(images)))
    for peer in channel.peers:
        channel.send_json(peer, encode(request))
    report(Requested(request=request, model=card.known))
    session.prepare(card, request)
    session.share_weights(None)
    start = 0
    for batch in request.batches:
        opened = session.infer(batch, images[start : start + batch])
        assert opened is not None
        report(Answered(answers=card.opening(profile.protocol).read(opened)))
        start += batch
    session.finish()


def run_third_party(channel: Channel, profile: Profile, report: Report) -> None:
    """Take part without secrets: learns what is public, and nothing else."""
    session = Session(channel, profile, report)
    session.agree_on_terms()
    card = ModelCard.from_dict(channel.receive_json(Role.MODEL_OWNER))
    request = read_request(channel.receive_json(Role.DATA_OWNER))
    session.prepare(card, request)
    session.share_weights(None)
    for batch in request.batches:
        session.infer(batch)
    session.finish()


def images_of(
    pictures: Sequence[Path] | np.ndarray,
    find_notes: Callable[[np.ndarray], Sequence[str]] | None,
    report: Report,
) -> MakeImages:
    """Return what makes a model's inputs of pictures, and reports that it did."""

    def make_images(card: ModelCard) -> np.ndarray:
        inputs = make_inputs(list(pictures), card.model, card.data)
        notes = () if find_notes is None else tuple(find_notes(inputs.images))
        report(InputsMade(resized=inputs.resized, notes=notes))
        return inputs.images

    return make_images


def read_request(document: Any) -> Request:
    """Decode what the data owner asks for, and believe nothing of it."""
    try:
        return decode(Request, document, "request")
    except UserError as error:
        raise PartyError("the data owner's request cannot be understood") from error


def agree(channel: Channel, terms: Terms) -> None:
    """Stop unless every party has the same terms; a difference is shown from both sides."""
    for peer in channel.peers:
        channel.send_json(peer, dict(terms))
    for peer in channel.peers:
        theirs = channel.receive_json(peer)
        if not isinstance(theirs, dict):
            raise PartyError(f"the {peer.value} sent what cannot be understood")
        if found := first_difference(channel.role, terms, peer, theirs):
            raise PartyError(found)


class Session:
    """The steps that all roles have in common."""

    def __init__(
        self,
        channel: Channel,
        profile: Profile,
        report: Report,
        dealer: DealerEndpoint | None = None,
    ) -> None:
        self._channel, self._profile, self._report = channel, profile, report
        self._dealing = None if dealer is None else PartyDealing(channel, profile, dealer)
        self._programs: dict[int, Program] = {}
        self._started: Engine | None = None
        self._batch = 0

    @property
    def _engine(self) -> Engine:
        assert self._started is not None, "prepare comes first"
        return self._started

    def agree_on_terms(self) -> None:
        agree(self._channel, agreement_of(self._profile))

    def prepare(self, card: ModelCard, request: Request) -> None:
        """Compile for the batch sizes to come, and make sure that all hold one program."""
        started = time.perf_counter()
        profile = settled(self._profile, card, len(request.batches))
        try:
            for batch in sorted(set(request.batches)):
                self._programs[batch] = compile_network(
                    card, profile, batch, report_progress(self._report, "compiling")
                )
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            # shapes are the model owner's word
            raise PartyError(f"the weights do not fit the network: {error}") from error
        digest = "+".join(program.digest() for program in self._programs.values())
        dealing = self._dealing
        scripts = (
            {}
            if dealing is None
            else dealing.terms(
                self._programs,
                profile,
                card.public.scripts,
                report_progress(self._report, "rehearsing"),
            )
        )
        seconds = time.perf_counter() - started
        terms = {
            "architecture": card.architecture.digest(),
            "what is revealed": card.reveal.value,
            "program": digest,
            **scripts,
        }
        with self._doing("waiting for the other party"):
            agree(self._channel, terms)
        agreed = time.perf_counter()
        settings = None if dealing is None else dealing.settings
        self._started = Engine(self._channel, self._profile, settings)
        if dealing is not None:
            with self._doing("ordering randomness"):
                job = dealing.make_job(self._engine, request.batches)
                agree(self._channel, {"job for the dealer": job.digest})
                dealing.authorise(job)
        (program, *_) = self._programs.values()
        self._report(
            Prepared(
                compile_s=seconds,
                job_s=time.perf_counter() - agreed,
                architecture=card.architecture.digest(),
                program=digest,
                form="plain" if card.public.plan is None else "lowered",
                stages=len(program.stages) + 2,  # with the input's and the output's way
                notes=program.notes,
            )
        )

    def share_weights(self, tensors: dict[str, np.ndarray] | None) -> None:
        """Split the weights among the parties, once; then let the protocol set itself up."""
        started = time.perf_counter()
        (program, *_) = self._programs.values()
        for own in self._programs.values():
            self._engine.set_constants(own.constants)
        received_bytes = 0
        stages = [stage for stage in program.stages if stage.parameters]
        for done, stage in enumerate(stages):
            self._report(Progressed(what="sharing weights", done=done, total=len(stages)))
            if tensors is not None:
                own = {name: tensors[name] for name in stage.parameters}
                shares = self._engine.sharing.give_weights(own)
            else:
                shares, count = self._engine.sharing.take_weights(
                    Role.MODEL_OWNER, stage.parameters
                )
                received_bytes += count
            for name, share in shares.items():
                self._engine.runtime.set_var(name, share)
        self._report(Progressed(what="sharing weights", done=len(stages), total=len(stages)))
        shared = time.perf_counter()
        with self._doing("setting up the protocol"):
            self._warm_up()
            warm_up_s = time.perf_counter() - shared
            first_uses = self._use_kernels_first(program)
        self._report(
            WeightsShared(
                weights_s=shared - started,
                warm_up_s=warm_up_s + sum(cost.seconds for cost in first_uses),
                warm_up_bytes=sum(cost.sent_bytes for cost in first_uses),
                warm_up_exchanges=sum(cost.exchanges for cost in first_uses),
                received_bytes=received_bytes,
            )
        )

    def infer(self, batch: int, images: np.ndarray | None = None) -> np.ndarray | None:
        """Run all stages on one batch; gives what is opened to the data owner, None to others."""
        program = self._programs[batch]
        if self._dealing is not None:
            with self._doing("waiting for randomness"):
                self._report(self._dealing.await_material())
        source = program.stages[0].source
        started = time.perf_counter()
        if images is not None:
            shares, sent_bytes = self._engine.sharing.give({source: images})
            received_bytes = 0
        else:
            shares, received_bytes = self._engine.sharing.take(
                Role.DATA_OWNER, {source: program.input_shape}
            )
            sent_bytes = 0
        self._engine.runtime.set_var(source, shares[source])
        self._report_stage(_transfer("input", sent_bytes, received_bytes, started), batch)
        for stage in program.stages:
            if stage.noise is not None:
                self._engine.runtime.set_var(NOISE, self._engine.sharing.make_noise(stage.noise))
            cost = self._engine.run(stage.executable(), stage.name)
            for name in stage.read_once:
                self._engine.runtime.del_var(name)
            self._report_stage(cost, batch)
        if self._dealing is not None:
            self._dealing.end_part()
        started = time.perf_counter()
        target = program.stages[-1].target
        opened, count = self._engine.sharing.reveal_to(
            Role.DATA_OWNER, self._engine.runtime.get_var(target), program.output_shape
        )
        self._engine.runtime.del_var(target)
        sent_bytes, received_bytes = (count, 0) if opened is None else (0, count)
        self._report_stage(_transfer("output", sent_bytes, received_bytes, started), batch)
        self._batch += 1
        return opened

    def finish(self) -> None:
        if self._dealing is not None:
            self._dealing.close()
        self._report(Finished(peak_bytes=peak_bytes()))

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        """Report a step that may take long and has no parts to count."""
        self._report(Progressed(what=what, done=0, total=1))
        yield
        self._report(Progressed(what=what, done=1, total=1))

    def _report_stage(self, cost: StageCost, batch: int) -> None:
        self._report(StageDone(batch=self._batch, images=batch, cost=cost))

    def _use_kernels_first(self, program: Program) -> list[StageCost]:
        """Open every kernel whose mask is reused, before any product does."""
        if not program.kernels:
            return []
        assert self._dealing is not None, "a profile that reuses masks has a dealer"
        self._report(self._dealing.await_material())
        shapes = program.parameters
        costs = [self._engine.use_first(kernel, shapes[kernel]) for kernel in program.kernels]
        self._dealing.end_part()
        return costs

    def _warm_up(self) -> None:
        """Let the protocol make its keys and base transfers now, not within the first image."""
        if not self._profile.protocol.warms_up:
            return
        one = np.ones(_WARM_UP_SHAPE, np.float32)
        if self._channel.role is Role.MODEL_OWNER:
            shares, _ = self._engine.sharing.give({"warm_up": one})
        else:
            shares, _ = self._engine.sharing.take(Role.MODEL_OWNER, {"warm_up": one.shape})
        self._engine.runtime.set_var("warm_up", shares["warm_up"])
        executable = spu.Executable(
            name="warm_up",
            input_names=["warm_up"],
            output_names=["warmed_up"],
            code=compile_function(_touch_everything, one),
        )
        self._engine.run(executable, "warm up")
        for name in ("warm_up", "warmed_up"):
            self._engine.runtime.del_var(name)


def _touch_everything(x: Any) -> Any:
    """Compare, multiply and decompose into bits: all that needs setting up."""
    import jax

    return jax.nn.relu(x) * x + x @ x + jax.lax.rsqrt(x)


def _transfer(name: str, sent_bytes: int, received_bytes: int, started: float) -> StageCost:
    seconds = time.perf_counter() - started
    return StageCost(
        name=name,
        sent_bytes=sent_bytes,
        received_bytes=received_bytes,
        exchanges=1,
        seconds=seconds,
        compute_s=0.0,
    )

"""`mpcvit.run`: classify images privately, with both parties on this machine."""

import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from mpcvit.artifacts.engine import EngineSettings, read_engine, with_engine
from mpcvit.artifacts.profile import (
    DEALER_DEFAULT,
    SECURE_DEFAULT,
    InsecureProfileWarning,
    Profile,
    default_profile,
    load_profile,
)
from mpcvit.artifacts.protocols import Dealer
from mpcvit.artifacts.record import Reveal
from mpcvit.data import list_pictures
from mpcvit.errors import UserError, nearest
from mpcvit.progress import Progress, quiet
from mpcvit.secure.answers import RunResult
from mpcvit.secure.memory import require_memory
from mpcvit.secure.parties.events import (
    Connected,
    InputsMade,
    Journal,
    Requested,
    TakeAnswer,
    ignore_answer,
    make_record,
)
from mpcvit.secure.parties.job import OwnImages, OwnModel
from mpcvit.secure.parties.roles import Address, Role
from mpcvit.secure.parties.supervise import run_processes

if TYPE_CHECKING:
    from mpcvit.classifier import Classifier
    from mpcvit.lowering.program import Model, SecureProgram
    from mpcvit.model.checkpoint import Checkpoint
    from mpcvit.secure.dealing.endpoint import DealerEndpoint
    from mpcvit.secure.parties.events import Report
    from mpcvit.secure.protocol import MakeImages
    from mpcvit.secure.spu.link import Channel

AnyModel: TypeAlias = "str | Path | Classifier | Checkpoint | SecureProgram"
Images = str | Path | np.ndarray | Sequence[str | Path] | Sequence[np.ndarray]


def run(
    model: AnyModel,
    images: Images,
    profile: str | Path | Profile | None = None,
    *,
    batch_size: int = 1,
    reveal: Reveal | str = Reveal.CLASS,
    simulate: bool = False,
    check_range: bool = False,
    insecure: bool = False,
    ignore_memory: bool = False,
    progress: Progress = quiet,
    answered: TakeAnswer = ignore_answer,
) -> RunResult:
    """Classify images privately: the model's owner does not see them, nor their owner the model.

    `images` are files, a folder, or uint8 arrays [height, width, channel]. Every
    party is a process of its own on this machine, joined through the network
    that the profile describes: `cheetah` unless given, and `semi2k-dealer` for
    a program that was lowered for SEMI2K. `reveal` is what the owner of the
    images is given: the "class" alone, "top5", "rounded" or "logits".
    `simulate` makes them threads of this process instead: quicker to start and
    with the same counts, but not private and with no network. There,
    `check_range` first computes in plaintext, and the record's notes name stages
    whose values leave the range that the profile can represent.
    A profile with an insecure dealer, such as `semi2k`, needs `insecure=True` outside of
    the simulator, and gives an `InsecureProfileWarning`.
    A model that is too large for this machine's memory is refused, unless `ignore_memory`.
    `answered` is called with an image's index and its `ImageAnswer` as soon as that is there.
    """
    settings = with_engine_of(model, load_profile(profile or default_profile_for(model)))
    if settings.warning and not simulate:
        if not insecure:
            raise UserError(
                f"{settings.warning}; take profile='{DEALER_DEFAULT}' or '{SECURE_DEFAULT}', or "
                "add insecure=True to measure with it"
            )
        warnings.warn(settings.warning, InsecureProfileWarning, stacklevel=2)
    if batch_size < 1:
        raise UserError(f"batch_size must be positive, not {batch_size}")
    if check_range and not simulate:
        raise UserError("check_range needs simulate: between parties nobody sees the values")
    pictures = list_images(images)
    if not ignore_memory:
        count = min(batch_size, len(pictures))
        require_memory(model, settings, parties=settings.protocol.parties, batch_size=count)
    journal, reveal = Journal(progress, answered), read_reveal(reveal)
    progress("connecting", 0, 1)
    if simulate:
        _simulate(model, pictures, settings, batch_size, journal, reveal, check_range=check_range)
    else:
        _run_apart(model, pictures, settings, batch_size, journal, reveal)
    return make_result(journal, settings, transport="simulator" if simulate else "processes")


def make_result(journal: Journal, profile: Profile, *, transport: str) -> RunResult:
    """Return what the events of a run amount to."""
    return RunResult(
        answers=tuple(journal.answers),
        model=journal.find(Role.DATA_OWNER, Requested).model,
        record=make_record(journal, profile, transport=transport),
        resized=journal.find(Role.DATA_OWNER, InputsMade).resized,
    )


def _run_apart(
    model: AnyModel,
    images: list[Path] | np.ndarray,
    profile: Profile,
    batch_size: int,
    journal: Journal,
    reveal: Reveal,
) -> None:
    with tempfile.TemporaryDirectory(prefix="mpcvit-") as name:  # readable to this user alone
        owned = {
            Role.MODEL_OWNER: model_arguments(model, Path(name), reveal),
            Role.DATA_OWNER: image_arguments(images, batch_size),
        }
        run_processes(owned, profile, journal)


def _simulate(
    model: AnyModel,
    images: list[Path] | np.ndarray,
    profile: Profile,
    batch_size: int,
    journal: Journal,
    reveal: Reveal,
    *,
    check_range: bool,
) -> None:
    from mpcvit.secure.overflow import find_overflows
    from mpcvit.secure.protocol import images_of

    def find_notes(images: np.ndarray) -> list[str]:
        return [str(overflow) for overflow in find_overflows(_loaded(model), images, profile)]

    simulate(
        partial(_loaded, model),
        partial(images_of, images, find_notes if check_range else None),
        profile,
        batch_size=batch_size,
        journal=journal,
        reveal=reveal,
    )


def simulate(
    load: "Callable[[], Model]",
    make_images: "Callable[[Report], MakeImages]",
    profile: Profile,
    *,
    batch_size: int,
    journal: Journal,
    reveal: Reveal = Reveal.CLASS,
) -> None:
    """Run every role in a thread, by the code that parties in processes run.

    This is quick, exact in bytes and exchanges, and not private. The journal then has all.
    """
    from mpcvit.secure.dealing.local_dealer import local_places
    from mpcvit.secure.protocol import run_data_owner, run_model_owner, run_third_party
    from mpcvit.secure.spu.engine import one_at_a_time, run_in_threads

    places: dict[Role, DealerEndpoint] = {}

    def take_part(channel: "Channel") -> None:
        role, report = channel.role, partial(journal.add, channel.role)
        report(Connected())
        match role:
            case Role.MODEL_OWNER:
                run_model_owner(channel, profile, load(), report, places.get(role), reveal)
            case Role.DATA_OWNER:
                dealer = places.get(role)
                run_data_owner(channel, profile, make_images(report), batch_size, report, dealer)
            case _:
                run_third_party(channel, profile, report)

    with one_at_a_time, ExitStack() as stack:
        if profile.dealer is Dealer.THIRD_PARTY:
            places |= stack.enter_context(local_places())
        run_in_threads(profile, take_part)


def default_profile_for(model: AnyModel, dealer: Address | None = None) -> str:
    """Return the default profile for a model: the one with a dealer if its engine needs that."""
    engine = engine_of(model)
    needs_dealer = engine is not None and engine.requires_dealer
    return DEALER_DEFAULT if needs_dealer else default_profile(dealer)


def engine_of(model: AnyModel) -> EngineSettings | None:
    """Return the engine that a program was lowered for; a checkpoint takes any."""
    if isinstance(model, str | Path):
        return read_engine(Path(model)) if Path(model).is_dir() else None
    return getattr(model, "engine", None)


def with_engine_of(model: AnyModel, profile: Profile) -> Profile:
    """Return a profile with the engine of a model that has one."""
    return with_engine(profile, engine_of(model))


def model_arguments(model: AnyModel, folder: Path, reveal: Reveal | str = Reveal.CLASS) -> OwnModel:
    """Return where a model owner's process finds its model, and what it reveals."""
    if isinstance(model, str | Path):
        path = Path(model).absolute()
    else:
        path = folder / "model"
        _loaded(model).save(path)
    return OwnModel(path=path, reveal=read_reveal(reveal))


def read_reveal(reveal: Reveal | str) -> Reveal:
    try:
        return Reveal(reveal)
    except ValueError:
        known = [one.value for one in Reveal]
        raise UserError(f"{reveal!r} cannot be revealed; {nearest(str(reveal), known)}") from None


def image_arguments(images: list[Path] | np.ndarray, batch_size: int) -> OwnImages:
    """Return where a data owner's process finds its images.

    Arrays go into a file in memory that has no name, so that nothing is left of it when
    this process ends, however it ends.
    """
    if not isinstance(images, np.ndarray):
        files = tuple(path.absolute() for path in images)
        return OwnImages(files=files, batch_size=batch_size)
    descriptor = os.memfd_create("images")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        np.save(file, images, allow_pickle=False)
    return OwnImages(descriptor=descriptor, batch_size=batch_size)


def _loaded(model: AnyModel) -> "Model":
    from mpcvit.classifier import Classifier
    from mpcvit.lowering.program import load_model

    if isinstance(model, str | Path):
        return load_model(Path(model))
    return model.checkpoint if isinstance(model, Classifier) else model


def list_images(images: Images) -> list[Path] | np.ndarray:
    """Return files, or arrays as one array."""
    if isinstance(images, str | Path):
        return list_pictures([images])
    if isinstance(images, np.ndarray):
        return images
    if not len(images):
        raise UserError("there is no image")
    if all(isinstance(image, str | Path) for image in images):
        return list_pictures([Path(str(image)) for image in images])
    arrays = [np.asarray(image) for image in images]
    if len({array.shape for array in arrays}) > 1:
        raise UserError("the images are arrays of different shapes; give files, or one shape")
    return np.stack(arrays)

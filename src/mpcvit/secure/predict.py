"""`mpcvit.predict`: classify images privately with a model that another host serves."""

import tempfile
from pathlib import Path

from mpcvit.artifacts.engine import with_engine
from mpcvit.artifacts.profile import Profile, default_profile, load_profile
from mpcvit.errors import UserError
from mpcvit.hosts.credentials import load_credentials
from mpcvit.hosts.peer import CLIENT
from mpcvit.progress import Progress, quiet
from mpcvit.secure.parties.agreement import agreement_of
from mpcvit.secure.parties.events import Finished, Journal, TakeAnswer, ignore_answer
from mpcvit.secure.parties.roles import ROLES, Address, Role, resolve
from mpcvit.secure.parties.sockets import unix_address
from mpcvit.secure.parties.supervise import PartyProcess, own_address, wait_until_ready, watch
from mpcvit.secure.run import Images, RunResult, image_arguments, list_images, make_result
from mpcvit.secure.service.dialler import ServerLine
from mpcvit.secure.service.frames import FrameChecker
from mpcvit.secure.service.messages import Hello
from mpcvit.secure.service.requirements import (
    find_dealer,
    require_engine,
    require_for_two_hosts,
)


def predict(
    images: Images,
    *,
    server: Address,
    tls: str | Path,
    profile: str | Path | Profile | None = None,
    batch_size: int = 1,
    dealer: Address | None = None,
    dealer_key: str | Path | None = None,
    insecure_first_party: bool = False,
    wait_s: float = 600.0,
    progress: Progress = quiet,
    answered: TakeAnswer = ignore_answer,
) -> RunResult:
    """Classify images privately: the server does not see them, nor this host the weights.

    `images` are files, a folder, or uint8 arrays [height, width, channel]. `tls` is the
    client's folder that `mpcvit certs` made. This host opens no port: it dials the server,
    and the dealer if there is one. `dealer` and `dealer_key` name the dealer; with one,
    the profile is `semi2k-dealer` unless given, and `cheetah` otherwise. The server of a
    lowered program decides ring, fraction bits and truncation, within safe bounds.
    `wait_s` limits the time in the server's queue. `answered` is called with an image's
    index and its `ImageAnswer` as soon as that is there, whatever happens to the others.
    """
    settings = load_profile(profile or default_profile(dealer))
    require_for_two_hosts(settings, [resolve(server)[0]], insecure_first_party=insecure_first_party)
    if batch_size < 1:
        raise UserError(f"batch_size must be positive, not {batch_size}")
    credentials = load_credentials(tls, CLIENT)
    pictures = list_images(images)
    endpoint = find_dealer(settings, dealer, dealer_key, credentials)
    journal = Journal(progress, answered)
    progress("connecting", 0, 1)
    with tempfile.TemporaryDirectory(prefix="mpcvit-") as name:  # readable to this user alone
        folder = Path(name)
        line = ServerLine(
            server,
            credentials,
            connect_s=settings.limits.connect_s,
            wait_s=wait_s,
            waiting=lambda place: progress(_in_queue(place), 0, 1),
        )
        own = image_arguments(pictures, batch_size)
        with PartyProcess(Role.DATA_OWNER, own, folder, dealer=endpoint) as party, line:
            wait_until_ready(party, settings, journal)
            hello = Hello(
                terms=agreement_of(settings),
                images=len(pictures),
                batch_size=min(batch_size, len(pictures)),
            )
            answer = line.open(hello)
            require_engine(answer.engine)
            settings = with_engine(settings, answer.engine)
            tunnel = unix_address(folder / "tunnel.sock")
            peer_rank = ROLES[settings.protocol].index(Role.MODEL_OWNER)
            checker = FrameChecker(peer_rank=peer_rank, session=answer.session)
            line.carry(own_address(folder), tunnel, checker)
            party.connect({Role.MODEL_OWNER: tunnel}, answer.session, settings)

            def is_enough() -> bool:
                """Return whether only a farewell of the server's party is missing."""
                return line.server_is_done and journal.knows(Role.DATA_OWNER, Finished)

            watch([party], settings, journal, line.check, is_enough)
            line.end()
    return make_result(journal, settings, transport="hosts")


def _in_queue(place: int) -> str:
    return f"waiting, place {place} in the queue" if place else "waiting, the queue is full"

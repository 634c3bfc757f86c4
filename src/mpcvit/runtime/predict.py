"""`mpcvit.predict`: classify images privately with a model that another host serves."""

import tempfile
from pathlib import Path

from mpcvit.errors import UserError
from mpcvit.lowering.engine import with_engine
from mpcvit.profile import Profile, default_profile, load_profile
from mpcvit.runtime.events import Journal, Progress
from mpcvit.runtime.hosts import find_dealer, require_for_two_hosts, require_protected, told
from mpcvit.runtime.processes import PartyProcess, wait_until_ready, watch
from mpcvit.runtime.rendezvous import Hello, Watchdog, dial
from mpcvit.runtime.result import Answers
from mpcvit.runtime.roles import Address, Role, is_this_machine, require_free, resolve
from mpcvit.runtime.run import Images, RunResult, list_images, make_result, own_images
from mpcvit.runtime.terms import terms_of
from mpcvit.runtime.tls import load_credentials


def predict(
    images: Images,
    *,
    server: Address,
    listen: Address,
    tls: str | Path | None = None,
    profile: str | Path | Profile | None = None,
    batch_size: int = 1,
    dealer: Address | None = None,
    dealer_key: str | Path | None = None,
    allow_plaintext: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> RunResult:
    """Classify images privately: the server does not see them, nor this host the weights.

    `images` are files, a folder, or uint8 arrays [height, width, channel].
    `listen` is this host's address, which the server dials back. `tls` is a
    folder with this party's certificate; without it, both addresses must be
    on this machine, unless `allow_plaintext`. `dealer` and `dealer_key` name
    the dealer, where the profile has one; with one, the profile is
    `semi2k-dealer` unless given, and else `cheetah`. A lowered program's
    engine is the server's to say: ring, fraction bits and truncation.
    """
    settings = load_profile(profile or default_profile(dealer))
    require_for_two_hosts(settings)
    if batch_size < 1:
        raise UserError(f"batch_size must be positive, not {batch_size}")
    credentials = None if tls is None else load_credentials(tls, Role.DATA_OWNER)
    require_protected(
        [listen, server], encrypted=credentials is not None, allow_plaintext=allow_plaintext
    )
    host, port = resolve(listen)
    server_host, _ = resolve(server)
    if is_this_machine(host) and not is_this_machine(server_host):
        raise UserError(f"the server cannot dial {listen}; listen on an address that it reaches")
    require_free(f"{host}:{port}")
    pictures = list_images(images)
    place = find_dealer(settings, dealer, dealer_key, credentials)
    journal = Journal(progress)
    progress("connecting", 0, 1)
    with tempfile.TemporaryDirectory(prefix="mpcvit-") as name:  # readable to this user alone
        own = {
            **own_images(pictures, Path(name)),
            "batch_size": batch_size,
            **told(credentials, place),
        }
        with PartyProcess(Role.DATA_OWNER, own, Path(name) / "data_owner") as party:
            wait_until_ready(party, settings, journal)
            hello = Hello(terms=terms_of(settings), link_port=port)
            line, answer = dial(server, host, hello, credentials, settings.limits.connect_s)
            with line:
                addresses = {
                    Role.MODEL_OWNER: f"{server_host}:{answer.link_port}",
                    Role.DATA_OWNER: f"{host}:{port}",
                }
                settings = with_engine(settings, answer.engine)
                party.meet(addresses, answer.session, settings)
                watchdog = Watchdog(line, f"the server at {server} ended the session")

                def is_enough() -> bool:
                    """A farewell of the server's party that got lost is no loss."""
                    return watchdog.other_is_done and journal.knows(Role.DATA_OWNER, "result")

                watch([party], settings, journal, watchdog.check, is_enough)
                watchdog.part()
    answers = Answers.from_dict(journal.find(Role.DATA_OWNER, "result"))
    return make_result(journal, answers, settings, roles=[Role.DATA_OWNER], transport="hosts")

"""`mpcvit.serve`: offer a model to many clients through one port.

This process holds the port, the log and the tunnels. Each session has a party of its own
behind it: a process that was loaded in advance, in a folder that nobody else may enter.
"""

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

from mpcvit.artifacts.engine import with_engine
from mpcvit.artifacts.profile import Profile, load_profile
from mpcvit.artifacts.record import Reveal
from mpcvit.errors import UserError
from mpcvit.hosts.credentials import load_credentials
from mpcvit.hosts.door import why_no_door
from mpcvit.hosts.peer import SERVER
from mpcvit.secure.memory import require_memory
from mpcvit.secure.parties.agreement import agreement_of
from mpcvit.secure.parties.roles import Address, resolve, split_address
from mpcvit.secure.run import AnyModel, default_profile_for, engine_of, model_arguments
from mpcvit.secure.service.metrics import ServerMetrics
from mpcvit.secure.service.quota import default_state, open_state
from mpcvit.secure.service.requirements import find_dealer, require_for_two_hosts
from mpcvit.secure.service.server import ServeLimits, Server
from mpcvit.secure.service.visit import ConnectionLogLine


def serve(
    model: AnyModel,
    *,
    listen: Address,
    tls: str | Path,
    profile: str | Path | Profile | None = None,
    reveal: Reveal | str = Reveal.CLASS,
    dealer: Address | None = None,
    dealer_key: str | Path | None = None,
    limits: ServeLimits | None = None,
    state: str | Path | None = None,
    advertise: Address | None = None,
    metrics: Address | None = None,
    insecure_first_party: bool = False,
    ignore_memory: bool = False,
    max_sessions: int | None = None,
    stop: threading.Event | None = None,
    started: Callable[[], None] = lambda: None,
    log: Callable[[ConnectionLogLine], None] = lambda visit: None,
    note: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Offer a model to clients until `stop` is set.

    `listen` is the one port that is open. `tls` is the server's folder that `mpcvit certs`
    made; its `allowed.txt` lists the clients, and is read again on SIGHUP. `reveal` is what
    clients are given of their images' logits: the "class" alone, "top5", "rounded" or
    "logits". `dealer` and `dealer_key` name the dealer if the profile has one. Unless given,
    the profile is `semi2k-dealer` with a dealer and for a program that was lowered for
    SEMI2K, and `cheetah` otherwise.
    `state` is an SQLite file or a postgresql:// address that counts images by client and
    day; a PostgreSQL database also holds the allowed clients. `advertise` is where a
    session's further connections reach this very host, behind a load balancer. `metrics`
    is an address of this machine that shows numbers to Prometheus.
    A model that is too large for this machine's memory is refused, unless `ignore_memory`.
    `started` is called when clients may come, `log` with every visit, and `note` with
    what an administrator should know. Returns by itself only after `max_sessions`.
    """
    limits = limits or ServeLimits()
    named, engine = load_profile(profile or default_profile_for(model, dealer)), engine_of(model)
    settings = with_engine(named, engine)
    host, port = resolve(listen)
    require_for_two_hosts(settings, [host], insecure_first_party=insecure_first_party)
    if not ignore_memory:
        require_memory(model, settings, parties=limits.clients or 1)
    credentials = load_credentials(tls, SERVER)
    if advertise:
        split_address(advertise)
    endpoint = find_dealer(settings, dealer, dealer_key, credentials)
    with ExitStack() as stack:
        folder = Path()
        if not isinstance(model, str | Path):  # parties load it from a file
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="mpcvit-")))
        own = model_arguments(model, folder, reveal)
        numbers = ServerMetrics()
        if metrics:
            numbers.serve(metrics)
            stack.callback(numbers.close)
        try:
            listener = stack.enter_context(socket.create_server((host, port), backlog=512))
        except OSError as error:
            raise UserError(f"cannot listen on {listen}: {why_no_door(error)}") from error
        server = Server(
            own=own,
            dealer=endpoint,
            profile=settings,
            # as named, since the client learns the engine from the answer
            terms=agreement_of(named),
            engine=engine,
            credentials=credentials,
            limits=limits,
            state=stack.enter_context(closing(open_state(state or _state_for(limits)))),
            advertise=advertise or "",
            metrics=numbers,
            max_sessions=max_sessions,
            stop=stop or threading.Event(),
            log=log,
            note=note,
        )
        asyncio.run(server.run(listener, started))


def _state_for(limits: ServeLimits) -> str | Path:
    """Return where images are counted: nothing is written unless there is a budget."""
    return default_state() if limits.max_images_per_day else ":memory:"

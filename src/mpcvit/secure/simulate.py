"""All parties as threads of one process: quick, exact in bytes and exchanges, and not private."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.protocols import Dealer
from mpcvit.artifacts.record import Reveal
from mpcvit.lowering.program import Model
from mpcvit.secure.dealing.endpoint import DealerEndpoint
from mpcvit.secure.dealing.local_dealer import local_places
from mpcvit.secure.parties.events import Connected, Journal, Report
from mpcvit.secure.parties.roles import Role
from mpcvit.secure.protocol import MakeImages, run_data_owner, run_model_owner, run_third_party
from mpcvit.secure.spu.engine import run_in_threads
from mpcvit.secure.spu.link import Channel

one_at_a_time = threading.Lock()  # SPU's log belongs to the process


def simulate(
    load: Callable[[], Model],
    make_images: Callable[[Report], MakeImages],
    profile: Profile,
    *,
    batch_size: int,
    journal: Journal,
    reveal: Reveal = Reveal.CLASS,
) -> None:
    """Run every role by the code that parties in processes run; the journal then has all."""
    places: dict[Role, DealerEndpoint] = {}

    def take_part(channel: Channel) -> None:
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

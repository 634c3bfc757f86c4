"""Checks of a machine: what would not work on it, and what to do about it."""

import importlib.metadata
import math
import os
import platform
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

from mpcvit.errors import UserError
from mpcvit.secure.memory import available_bytes
from mpcvit.storage import cache_folder, size_text

_PYTHONS = ((3, 10), (3, 11))
_INSTRUCTIONS = ("aes", "avx", "avx2", "pclmulqdq")
_PINNED = ("jax", "jaxlib", "spu")
_MISSING = "missing"
# a party of the demo's networks takes 0.35 GB, and one of a softmax network for 64 x 64 pixels 2.6
_LEAST_MEMORY, _COMFORTABLE_MEMORY = 1_000_000_000, 6_000_000_000
_LEAST_DISK, _COMFORTABLE_DISK = 100_000_000, 2_000_000_000
_ANSWER_S = 5.0
_SOON_DAYS = 14
_PRODUCT = """
import numpy as np
from mpcvit.artifacts.profile import load_profile
from mpcvit.secure.probe import measure_function
x = np.full((2, 2), 1.5, np.float32)
product = measure_function(lambda x: x @ x, [x], load_profile("cheetah")).output
assert np.abs(product - x @ x).max() < 0.01, product
"""


class State(str, Enum):
    """The outcome of a check."""

    FINE = "fine"
    NOTE = "note"  # works, with a limit
    PROBLEM = "problem"


@dataclass(frozen=True)
class Check:
    """A check: what was looked at, what was found, and what to do about it."""

    name: str
    state: State
    found: str
    advice: str = ""


def examine(
    *,
    tls: Path | None = None,
    listen: str | None = None,
    server: str | None = None,
    dealer: str | None = None,
    dealer_key: Path | None = None,
) -> Iterator[Check]:
    """Give every check when it is done; addresses and certificates are looked at if given."""
    yield _check_python()
    yield _check_platform()
    if platform.system() != "Linux":
        return
    yield _check_cores()
    yield _check_memory()
    yield _check_packages()
    if _version("spu") != _MISSING:
        yield _check_spu()
    yield _check_disk("cache", cache_folder(), "set MPCVIT_CACHE to another folder")
    yield _check_disk("temporary files", Path(tempfile.gettempdir()), "set TMPDIR")
    yield _check_unix_sockets()
    yield _check_ports()
    if listen is not None:
        yield _check_listening(listen)
    if tls is not None:
        certificate = _check_certificates(tls)
        yield certificate
        tls = None if certificate.state is State.PROBLEM else tls
    for role, address in (("server", server), ("dealer", dealer)):
        if address is not None:
            yield _check_address(role, address, tls)
    if dealer_key is not None:
        yield _check_key(dealer_key, dealer, tls)


def _check_python() -> Check:
    say, found = partial(Check, "Python"), platform.python_version()
    if sys.version_info[:2] in _PYTHONS:
        return say(State.FINE, found)
    advice = "SPU exists for 3.10 and 3.11; make an environment with one of these"
    return say(State.PROBLEM, found, advice)


def _check_platform() -> Check:
    say, system, machine = partial(Check, "platform"), platform.system(), platform.machine()
    found = f"{system}, {machine}"
    if (system, machine) != ("Linux", "x86_64"):
        advice = "SPU is used on Linux x86-64; take such a machine, or a container on one"
        return say(State.PROBLEM, found, advice)
    flags = set(re.findall(r"\w+", _first_line("/proc/cpuinfo", "flags")))
    if missing := [name for name in _INSTRUCTIONS if name not in flags]:
        advice = "runs are slow, or SPU does not start (see SPU below)"
        return say(State.NOTE, f"{found}, without {', '.join(missing)}", advice)
    return say(State.FINE, f"{found}, {', '.join(_INSTRUCTIONS)}")


def _check_cores() -> Check:
    say, count = partial(Check, "cores"), len(os.sched_getaffinity(0))
    if count > 1:
        return say(State.FINE, str(count))
    advice = "two parties share the core; seconds of `mpcvit run` on this machine say little"
    return say(State.NOTE, "1", advice)


def _check_memory() -> Check:
    say, free = partial(Check, "memory"), available_bytes()
    found = f"{size_text(free)} free" if math.isfinite(free) else "nothing says how much is free"
    if free >= _COMFORTABLE_MEMORY:
        return say(State.FINE, found)
    advice = "a party takes 0.4 GB for a small network and 3 GB for a larger one, on each host"
    return say(State.PROBLEM if free < _LEAST_MEMORY else State.NOTE, found, advice)


def _check_packages() -> Check:
    say, requirements = partial(Check, "packages"), importlib.metadata.requires("mpcvit") or ()
    wanted = dict(re.findall(r"^([\w-]+)==([\w.]+)", "\n".join(requirements), re.M))
    found = {name: _version(name) for name in _PINNED}
    wrong = [f"{name}=={wanted[name]}" for name in _PINNED if found[name] != wanted[name]]
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    if not wrong:
        return say(State.FINE, text)
    if set(found.values()) == {_MISSING}:
        advice = "`mpcvit dealer serve` needs none of them; for all else, install mpcvit again"
        return say(State.NOTE, text, advice)
    return say(State.PROBLEM, text, f"run pip install {' '.join(wrong)}")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return _MISSING


def _check_spu() -> Check:
    """Multiply matrices under Cheetah in a process of its own, which SPU may bring down."""
    say = partial(Check, "SPU")
    done = subprocess.run([sys.executable, "-c", _PRODUCT], capture_output=True, text=True)
    if done.returncode == 0:
        return say(State.FINE, "a product of matrices by two parties is right")
    if done.returncode < 0:
        number = -done.returncode
        advice = "the CPU lacks instructions that SPU uses" if number == 4 else "install spu again"
        return say(State.PROBLEM, f"ended by signal {number}", advice)
    found = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return say(State.PROBLEM, found, "install mpcvit again in a fresh environment")


def _check_disk(name: str, folder: Path, advice: str) -> Check:
    say = partial(Check, name)
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    found = f"{folder}, {size_text(free)} free"
    if not os.access(existing, os.W_OK):
        return say(State.PROBLEM, f"{found}, cannot be written", advice)
    if free < _COMFORTABLE_DISK:
        state = State.PROBLEM if free < _LEAST_DISK else State.NOTE
        return say(state, found, f"free some space, or {advice}")
    return say(State.FINE, found)


def _check_unix_sockets() -> Check:
    say, folder = partial(Check, "sockets in files"), tempfile.gettempdir()
    try:
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            address = str(Path(name) / "s")
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(address)
            server.listen()
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(address)
    except OSError as error:
        advice = "parties meet there; set TMPDIR to a folder with a short name on a local disk"
        return say(State.PROBLEM, f"{folder}: {error.strerror or error}", advice)
    return say(State.FINE, f"can be opened in {folder}")


def _check_ports() -> Check:
    say = partial(Check, "ports")
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=_ANSWER_S).close()
    except OSError as error:
        advice = "emulated networks and dealers on this machine need ports of loopback"
        return say(State.PROBLEM, f"127.0.0.1: {error.strerror or error}", advice)
    return say(State.FINE, "can be opened on 127.0.0.1")


def _check_listening(address: str) -> Check:
    from mpcvit.hosts.door import why_no_door
    from mpcvit.secure.parties.roles import resolve

    def say(state: State, found: str, advice: str = "") -> Check:
        return Check("listening", state, f"{address}: {found}", advice)

    try:
        with socket.create_server(resolve(address)):
            return say(State.FINE, "the port is free; firewalls are seen from other hosts alone")
    except UserError as error:
        return say(State.PROBLEM, str(error))
    except OSError as error:
        why, _, advice = why_no_door(error).partition("; ")
        return say(State.PROBLEM, why, advice)


def _check_certificates(folder: Path) -> Check:
    from datetime import datetime, timezone

    from mpcvit.hosts.credentials import CERTIFICATE_FILE, load_credentials, read_certificate
    from mpcvit.hosts.peer import DEALER, read_allowed

    say = partial(Check, "certificate")
    again = "make the certificates again: mpcvit certs --fresh"
    if not folder.is_dir():
        advice = "name this host's folder of those that mpcvit certs made"
        return say(State.PROBLEM, f"there is no folder {folder}", advice)
    try:
        role = _role_of(folder)
        credentials = load_credentials(folder, role)
        certificate = read_certificate(folder / CERTIFICATE_FILE)
    except UserError as error:
        return say(State.PROBLEM, str(error), again)
    mode = stat.S_IMODE(credentials.key.stat().st_mode)
    if mode & 0o077:
        return say(
            State.PROBLEM,
            f"other users can read {credentials.key} (mode {mode:o})",
            f"run chmod 600 {credentials.key}; if others use this machine, {again}",
        )
    until = certificate.not_valid_after_utc
    found = f"{folder}, of a {role}, until {until:%Y-%m-%d}"
    days = (until - datetime.now(timezone.utc)).days
    if days < _SOON_DAYS:
        return say(State.NOTE, f"{found}: {days} days are left", again)
    if role != DEALER:
        peers = read_allowed(credentials.allowed)
        found += f", accepts {', '.join(peers.values()) or 'nobody'}"
        if not peers:
            advice = f"put a peer's fingerprint into {credentials.allowed}; see mpcvit certs add"
            return say(State.NOTE, found, advice)
    return say(State.FINE, found)


def _role_of(folder: Path) -> str:
    """Return the role that a certificate is for."""
    from cryptography.x509.oid import NameOID

    from mpcvit.hosts.credentials import CERTIFICATE_FILE, load_credentials, read_certificate
    from mpcvit.hosts.peer import CLIENT

    if not (folder / CERTIFICATE_FILE).is_file():
        load_credentials(folder, CLIENT)  # says what is missing
    subject = read_certificate(folder / CERTIFICATE_FILE).subject
    units = subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    return str(units[0].value) if units else "nobody"


def _check_address(role: str, address: str, tls: Path | None) -> Check:
    from mpcvit.hosts.credentials import why_not_accepted
    from mpcvit.secure.parties.roles import resolve, split_address

    def say(state: State, found: str, advice: str = "") -> Check:
        return Check(role, state, f"{address}: {found}", advice)

    command = "mpcvit serve" if role == "server" else "mpcvit dealer serve"
    try:
        host, _ = split_address(address)
        with socket.create_connection(resolve(address), timeout=_ANSWER_S) as line:
            if tls is None:
                return say(State.NOTE, "somebody listens", "a good --tls shows who it is")
            return say(State.FINE, _shake_hands(line, host, role, tls))
    except UserError as error:
        return say(State.PROBLEM, str(error))
    except ConnectionRefusedError:
        return say(State.PROBLEM, "nobody listens", f"start `{command}` there")
    except ssl.SSLCertVerificationError as error:
        why, _, advice = why_not_accepted(error).partition("; ")
        return say(State.PROBLEM, f"its certificate is refused: {why}", advice)
    except ssl.SSLError as error:
        return say(State.PROBLEM, f"no TLS: {error.reason or error}", f"is it `{command}`?")
    except OSError as error:
        reason = error.strerror or "no answer"
        advice = "look at the firewalls between the hosts, and at the address"
        return say(State.PROBLEM, reason, advice)


def _check_key(key: Path, dealer: str | None, tls: Path | None) -> Check:
    from mpcvit.dealer.keys import load_public_key
    from mpcvit.secure.dealing.endpoint import DealerEndpoint

    say = partial(Check, "dealer's key")
    try:
        load_public_key(key)
        if dealer is None or tls is None:
            return say(State.NOTE, f"{key} is a key", "--dealer and --tls show whether it fits")
        DealerEndpoint(address=dealer, key=str(key), tls=str(tls)).client(_ANSWER_S).check()
    except UserError as error:
        return say(State.PROBLEM, str(error), "ask the dealer's owner for its public.pem")
    return say(State.FINE, f"{key} is that of {dealer}")


def _shake_hands(line: socket.socket, host: str, role: str, tls: Path) -> str:
    """Return who answers over TLS; raise if it is not who was expected."""
    from mpcvit.hosts.credentials import Credentials
    from mpcvit.hosts.peer import SERVER, peer_of, read_allowed

    credentials = Credentials(folder=tls.absolute())
    is_server = role == SERVER
    context = credentials.dialling_context() if is_server else credentials.dealer_context()
    with context.wrap_socket(line, server_hostname=host) as safe:
        peer = peer_of(safe)
    if peer.role != role:
        raise UserError(f"its certificate is that of a '{peer.role}', not of a '{role}'")
    if is_server and peer.fingerprint not in read_allowed(credentials.allowed):
        raise UserError(
            f"its certificate is not on the list in {credentials.allowed}: SHA-256 "
            f"{peer.fingerprint}"
        )
    return f"answers as {peer.name}, with a certificate that this host accepts"


def _first_line(file: str, start: str) -> str:
    lines = Path(file).read_text().splitlines()
    return next((line for line in lines if line.startswith(start)), "0")

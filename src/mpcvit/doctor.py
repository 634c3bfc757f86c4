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
from pathlib import Path

from mpcvit.errors import UserError
from mpcvit.memory import available_bytes
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
    """How a check went."""

    FINE = "fine"
    NOTE = "note"  # works, with a limit
    PROBLEM = "problem"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at, what was found, and what to do about it."""

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
    found = platform.python_version()
    if sys.version_info[:2] in _PYTHONS:
        return Check(name="Python", state=State.FINE, found=found)
    return Check(
        name="Python",
        state=State.PROBLEM,
        found=found,
        advice="SPU exists for 3.10 and 3.11; make an environment with one of these",
    )


def _check_platform() -> Check:
    system, machine = platform.system(), platform.machine()
    found = f"{system}, {machine}"
    if (system, machine) != ("Linux", "x86_64"):
        advice = "SPU is used on Linux x86-64; take such a machine, or a container on one"
        return Check(name="platform", state=State.PROBLEM, found=found, advice=advice)
    flags = set(re.findall(r"\w+", _first_line("/proc/cpuinfo", "flags")))
    missing = [name for name in _INSTRUCTIONS if name not in flags]
    if not missing:
        return Check(
            name="platform", state=State.FINE, found=f"{found}, {', '.join(_INSTRUCTIONS)}"
        )
    return Check(
        name="platform",
        state=State.NOTE,
        found=f"{found}, without {', '.join(missing)}",
        advice="runs are slow, or SPU does not start (see SPU below)",
    )


def _check_cores() -> Check:
    count = len(os.sched_getaffinity(0))
    if count > 1:
        return Check(name="cores", state=State.FINE, found=str(count))
    advice = "two parties share the core; seconds of `mpcvit run` on this machine say little"
    return Check(name="cores", state=State.NOTE, found="1", advice=advice)


def _check_memory() -> Check:
    free = available_bytes()
    found = f"{size_text(free)} free" if math.isfinite(free) else "nothing says how much is free"
    advice = "a party takes 0.4 GB for a small network and 3 GB for a larger one, on each host"
    state = State.FINE if free >= _COMFORTABLE_MEMORY else State.NOTE
    if free < _LEAST_MEMORY:
        state = State.PROBLEM
    return Check(
        name="memory", state=state, found=found, advice="" if state is State.FINE else advice
    )


def _check_packages() -> Check:
    wanted = dict(
        re.findall(
            r"^([\w-]+)==([\w.]+)", "\n".join(importlib.metadata.requires("mpcvit") or ()), re.M
        )
    )
    found = {name: _version(name) for name in _PINNED}
    wrong = [f"{name}=={wanted[name]}" for name in _PINNED if found[name] != wanted[name]]
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    if not wrong:
        return Check(name="packages", state=State.FINE, found=text)
    if set(found.values()) == {_MISSING}:
        advice = "`mpcvit dealer serve` needs none of them; for all else, install mpcvit again"
        return Check(name="packages", state=State.NOTE, found=text, advice=advice)
    advice = f"run pip install {' '.join(wrong)}"
    return Check(name="packages", state=State.PROBLEM, found=text, advice=advice)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return _MISSING


def _check_spu() -> Check:
    """Multiply matrices under Cheetah in a process of its own, which SPU may bring down."""
    done = subprocess.run([sys.executable, "-c", _PRODUCT], capture_output=True, text=True)
    if done.returncode == 0:
        found = "a product of matrices by two parties is right"
        return Check(name="SPU", state=State.FINE, found=found)
    if done.returncode < 0:
        number = -done.returncode
        advice = "the CPU lacks instructions that SPU uses" if number == 4 else "install spu again"
        found = f"ended by signal {number}"
    else:
        found = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        advice = "install mpcvit again in a fresh environment"
    return Check(name="SPU", state=State.PROBLEM, found=found, advice=advice)


def _check_disk(name: str, folder: Path, advice: str) -> Check:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    found = f"{folder}, {size_text(free)} free"
    if not os.access(existing, os.W_OK):
        return Check(
            name=name, state=State.PROBLEM, found=f"{found}, cannot be written", advice=advice
        )
    if free < _COMFORTABLE_DISK:
        state = State.PROBLEM if free < _LEAST_DISK else State.NOTE
        return Check(name=name, state=state, found=found, advice=f"free some space, or {advice}")
    return Check(name=name, state=State.FINE, found=found)


def _check_unix_sockets() -> Check:
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            address = str(Path(name) / "s")
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(address)
            server.listen()
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(address)
    except OSError as error:
        return Check(
            name="sockets in files",
            state=State.PROBLEM,
            found=f"{folder}: {error.strerror or error}",
            advice="parties meet there; set TMPDIR to a folder with a short name on a local disk",
        )
    return Check(name="sockets in files", state=State.FINE, found=f"can be opened in {folder}")


def _check_ports() -> Check:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=_ANSWER_S).close()
    except OSError as error:
        return Check(
            name="ports",
            state=State.PROBLEM,
            found=f"127.0.0.1: {error.strerror or error}",
            advice="emulated networks and dealers on this machine need ports of loopback",
        )
    return Check(name="ports", state=State.FINE, found="can be opened on 127.0.0.1")


def _check_listening(address: str) -> Check:
    from mpcvit.hosts.door import why_no_door
    from mpcvit.secure.parties.roles import resolve

    def report(state: State, found: str, advice: str = "") -> Check:
        return Check(name="listening", state=state, found=f"{address}: {found}", advice=advice)

    try:
        with socket.create_server(resolve(address)):
            return report(State.FINE, "the port is free; firewalls are seen from other hosts alone")
    except UserError as error:
        return report(State.PROBLEM, str(error))
    except OSError as error:
        why, _, advice = why_no_door(error).partition("; ")
        return report(State.PROBLEM, why, advice)


def _check_certificates(folder: Path) -> Check:
    from datetime import datetime, timezone

    from mpcvit.hosts.credentials import CERTIFICATE_FILE, load_credentials, read_certificate
    from mpcvit.hosts.peer import DEALER

    def report(state: State, found: str, advice: str = "") -> Check:
        return Check(name="certificate", state=state, found=found, advice=advice)

    again = "make the certificates again: mpcvit certs --fresh"
    if not folder.is_dir():
        advice = "name this host's folder of those that mpcvit certs made"
        return report(State.PROBLEM, f"there is no folder {folder}", advice)
    try:
        role = _role_of(folder)
        credentials = load_credentials(folder, role)
        certificate = read_certificate(folder / CERTIFICATE_FILE)
    except UserError as error:
        return report(State.PROBLEM, str(error), again)
    mode = stat.S_IMODE(credentials.key.stat().st_mode)
    if mode & 0o077:
        return report(
            State.PROBLEM,
            f"other users can read {credentials.key} (mode {mode:o})",
            f"run chmod 600 {credentials.key}; if others use this machine, {again}",
        )
    until = certificate.not_valid_after_utc
    found = f"{folder}, of a {role}, until {until:%Y-%m-%d}"
    days = (until - datetime.now(timezone.utc)).days
    if days < _SOON_DAYS:
        return report(State.NOTE, f"{found}: {days} days are left", again)
    if role != DEALER:
        from mpcvit.hosts.peer import read_allowed

        peers = read_allowed(credentials.allowed)
        found += f", accepts {', '.join(peers.values()) or 'nobody'}"
        if not peers:
            advice = f"put a peer's fingerprint into {credentials.allowed}; see mpcvit certs add"
            return report(State.NOTE, found, advice)
    return report(State.FINE, found)


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

    def report(state: State, found: str, advice: str = "") -> Check:
        return Check(name=role, state=state, found=f"{address}: {found}", advice=advice)

    command = "mpcvit serve" if role == "server" else "mpcvit dealer serve"
    try:
        host, _ = split_address(address)
        with socket.create_connection(resolve(address), timeout=_ANSWER_S) as line:
            if tls is None:
                return report(State.NOTE, "somebody listens", "a good --tls shows who it is")
            return report(State.FINE, _shake_hands(line, host, role, tls))
    except UserError as error:
        return report(State.PROBLEM, str(error))
    except ConnectionRefusedError:
        return report(State.PROBLEM, "nobody listens", f"start `{command}` there")
    except ssl.SSLCertVerificationError as error:
        why, _, advice = why_not_accepted(error).partition("; ")
        return report(State.PROBLEM, f"its certificate is refused: {why}", advice)
    except ssl.SSLError as error:
        return report(State.PROBLEM, f"no TLS: {error.reason or error}", f"is it `{command}`?")
    except OSError as error:
        reason = error.strerror or "no answer"
        advice = "look at the firewalls between the hosts, and at the address"
        return report(State.PROBLEM, reason, advice)


def _check_key(key: Path, dealer: str | None, tls: Path | None) -> Check:
    from mpcvit.dealer.keys import load_public_key
    from mpcvit.secure.dealing.endpoint import DealerEndpoint

    def report(state: State, found: str, advice: str = "") -> Check:
        return Check(name="dealer's key", state=state, found=found, advice=advice)

    try:
        load_public_key(key)
        if dealer is None or tls is None:
            return report(State.NOTE, f"{key} is a key", "--dealer and --tls show whether it fits")
        DealerEndpoint(address=dealer, key=str(key), tls=str(tls)).client(_ANSWER_S).check()
    except UserError as error:
        return report(State.PROBLEM, str(error), "ask the dealer's owner for its public.pem")
    return report(State.FINE, f"{key} is that of {dealer}")


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

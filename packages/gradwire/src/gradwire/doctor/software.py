"""Checks of one machine's software: versions, compiled kernels, TLS, and the network interface."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from gradwire import _native
from gradwire.codecs import TABLE, Codec, parse
from gradwire.deferred import torch
from gradwire.doctor.finding import Finding
from gradwire.errors import GradwireError, LinkError, SpecError
from gradwire.launch import addresses
from gradwire.links.rendezvous.tls import CERTIFICATE, KEY, encryption

LEAST_PYTHON = (3, 10)
LEAST_TORCH = (2, 6)
"""The minimum versions of Python and torch; a test compares them with pyproject.toml."""


def check_python(version: str) -> Finding:
    """Return a finding about Python's version, such as ``3.12.4``."""
    return _check_least("Python", version, LEAST_PYTHON, "run gradwire with a newer Python")


def check_torch(version: str) -> Finding:
    """Return a finding about torch's version, such as ``2.7.1+cu126``."""
    return _check_least("torch", version, LEAST_TORCH, "run pip install --upgrade torch")


def check_package(name: str, problem: str) -> Finding:
    """Return a finding of ``FAIL`` for a required package whose import failed with ``problem``."""
    return Finding(name, "FAIL", f"cannot be imported ({problem}); run pip install {name}")


def release(version: str) -> tuple[int, int] | None:
    """Return the major and minor number of a version, or None if the text is no version number.

    Examples
    --------
    >>> release("2.13.0+cpu"), release("nightly")
    ((2, 13), None)
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    return None if match is None else (int(match[1]), int(match[2]))


def _check_least(name: str, version: str, least: tuple[int, int], remedy: str) -> Finding:
    wanted = ".".join(map(str, least))
    found = release(version)
    if found is None:
        return Finding(name, "warn", f"expected at least {wanted}, got {version}; install a numbered release")
    if found < least:
        return Finding(name, "FAIL", f"expected at least {wanted}, got {version}; {remedy}")
    return Finding(name, "ok", f"{version} (at least {wanted})")


# A self-test of the compiled kernels on this processor: every codec on a fixed vector.

COUNT = 4099
"""The length of the fixed vector: some whole blocks of every block codec, and a partial vector register."""
BYTES_OF_A_LIBRARY = ("lossless",)
"""Codecs whose payload bytes, but not decoded values, depend on another library's version."""


@dataclass(frozen=True)
class SelfTest:
    """The result of a self-test of all codecs."""

    target: str  # the active target; "" if no target is available
    digest: str  # of all codecs' payloads, in hexadecimal; equal on all correct machines with this gradwire
    codecs: int
    complaints: tuple[str, ...]


def every_codec() -> list[Codec]:
    """Return all codecs with the parameters of all their examples."""
    return [parse(spec) for row in TABLE for spec in row.codec.EXAMPLES]


def fixed_vector(count: int = COUNT, seed: int = 1) -> torch.Tensor:
    """Return 1-D float32 values like a gradient's: of both signs, within 1, over five decades."""
    state, values = seed, []
    for _ in range(count):  # from integers, so that all machines have the same values
        state = (1664525 * state + 1013904223) % (1 << 32)
        values.append(((state >> 8) / (1 << 23) - 1.0) * 2.0 ** -(state % 17))
    return torch.tensor(values, dtype=torch.float32)


def self_test(codecs: Iterable[Codec]) -> SelfTest:
    """Encode and decode the fixed vector with each codec, on the scalar and the active target."""
    try:
        target, _ = _native.target(), _native.threads()
    except SpecError as error:
        return SelfTest("", "", 0, (str(error),))
    x, digest, complaints, tried = fixed_vector(), hashlib.sha256(), [], 0
    for codec in codecs:
        tried += 1
        try:
            payload = _try_codec(codec, x, target)
        except (GradwireError, ArithmeticError) as error:
            complaints.append(f"{codec}: {error}")
            continue
        if codec.name not in BYTES_OF_A_LIBRARY:
            digest.update(str(codec).encode() + payload)
    return SelfTest(target, digest.hexdigest()[:16], tried, tuple(complaints))


def check_kernels(done: SelfTest | None) -> Finding:
    """Return the finding of a self-test; ``done`` is None if a missing package prevented the test."""
    if done is None:
        return Finding("kernels", "warn", "not tested; fix the packages marked FAIL first")
    if done.complaints:
        rest = f", and {len(done.complaints) - 1} more" if len(done.complaints) > 1 else ""
        scalar = "set GRADWIRE_TARGET=scalar, and please report this bug"
        remedy = scalar if done.target else "or unset this variable"
        return Finding("kernels", "FAIL", f"{done.complaints[0]}{rest}; {remedy}")
    well = f"{done.codecs} specs within their error bounds"
    return Finding("kernels", "ok", f"{done.target} encodes the same bytes as scalar; {well}")


def _try_codec(codec: Codec, x: torch.Tensor, target: str) -> bytes:
    """Return the codec's payload of ``x``. Raises ``ArithmeticError`` for unequal targets or large errors."""
    with _native.use_target("scalar"):
        scalar = codec.encode(x)
        scalar_decoded = _decoded(codec, scalar, x)
    payload = codec.encode(x)
    if not torch.equal(payload, scalar):
        raise ArithmeticError(f"the targets {target} and scalar encode differently")
    decoded = _decoded(codec, payload, x)
    if not torch.equal(decoded.view(torch.int32), scalar_decoded.view(torch.int32)):
        raise ArithmeticError(f"the targets {target} and scalar decode differently")
    error, bound = (decoded.double() - x.double()).abs().max().item(), codec.bound(x)
    if not error <= bound:
        raise ArithmeticError(f"expected an error of at most {bound:.3g}, got {error:.3g}")
    return payload.numpy().tobytes()


def _decoded(codec: Codec, payload: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    codec.decode(payload, out)
    return out


# TLS of gradwire's frames, which three variables enable: whether its files work, and when they expire.

TRANSPORT = "GLOO_DEVICE_TRANSPORT"
SOON = timedelta(days=14)


def check_tls(environment: Mapping[str, str], now: datetime | None = None) -> Finding:
    """Return a finding about TLS and its files; ``now`` is the current time, with a time zone."""
    try:
        found = encryption(environment)
    except LinkError as error:
        return Finding("TLS", "FAIL", str(error))
    if found is not None:
        ends, certificate = datetime.fromtimestamp(found.expires_s, timezone.utc), environment[CERTIFICATE]
        if (now or datetime.now(timezone.utc)) + SOON > ends:
            soon = f"the certificate {certificate} expires on {ends:%Y-%m-%d}; renew the certificate"
            return Finding("TLS", "warn", soon)
        return Finding("TLS", "ok", f"on; the files match; valid until {ends:%Y-%m-%d}")
    transport = environment.get(TRANSPORT, "TCP")
    if transport != "TCP":
        problem = f"{TRANSPORT} is {transport}, which does not encrypt gradwire's frames"
        remedy = "set GRADWIRE_TLS_KEY, GRADWIRE_TLS_CERT and GRADWIRE_TLS_CA"
        return Finding("TLS", "FAIL", f"{problem}; {remedy}, or unset {TRANSPORT}")
    usual = "gradients are sent unencrypted, as usual in a private network"
    return Finding("TLS", "ok", f"off ({KEY} is not set): {usual}")


# The network interface that gradwire and Gloo would use to reach this machine's peers.


@dataclass(frozen=True)
class Interfaces:
    """The interfaces that gradwire would use on this machine, and all existing interfaces."""

    variable: str  # the variable that selects interfaces; "" if none does
    named: tuple[str, ...]
    addresses: tuple[str, ...]  # "" without an address; () if the addresses depend on the other ranks
    present: tuple[str, ...]
    store_host: str = ""  # "" without a job
    problem: str = ""  # the error of a variable that selects nothing

    @property
    def is_loopback(self) -> bool:
        """Whether an address is a loopback address, which no other machine can reach."""
        return any(address and addresses.is_loopback(address) for address in self.addresses)


def find_interfaces(environment: Mapping[str, str]) -> Interfaces:
    """Return the interfaces that gradwire would use with these environment variables."""
    present, store_host = addresses.interfaces(), environment.get("MASTER_ADDR", "")
    try:
        selected = addresses.selection(environment)
    except LinkError as error:
        return Interfaces(addresses.OTHER_VARIABLE, (), (), present, store_host, str(error))
    if selected is not None:
        return Interfaces(*selected, selected.addresses(), present, store_host)
    address = addresses.own_choice(environment, store_host) if store_host else ""
    return Interfaces("", (), (address,) if address else (), present, store_host)


def _others(present: Iterable[str]) -> str:
    """Return the names of all interfaces but the loopback interface, as text."""
    return ", ".join(name for name in present if name != "lo") or "none but lo"


def check_interfaces(found: Interfaces) -> Finding:
    """Return a finding about the interfaces; ``compare`` checks that several machines use no loopback."""
    if found.problem:
        return Finding("interface", "FAIL", found.problem)
    others, problem = _others(found.present), ""
    for name, address in zip(found.named, found.addresses, strict=False):
        if name not in found.present:
            problem = f"expected an interface of this machine, got {name!r}; choose"
        elif not address:
            problem = f"expected an interface with an address, got {name}; bring the interface up, or choose"
        if problem:
            return Finding("interface", "FAIL", f"{found.variable}: {problem} one of: {others}")
    where = ", ".join(found.addresses)
    if found.named:
        where += f" ({found.variable} selects {', '.join(found.named)})"
        if found.is_loopback:
            only = "only ranks of this machine can reach this address"
            where += f": {only}; for several machines, set {found.variable} to one of: {others}"
    elif not found.store_host:
        where = "the interface towards MASTER_ADDR, which is not set here"
    elif where:
        where += f" (on the route to MASTER_ADDR, {found.store_host})"
    else:
        here = f"MASTER_ADDR ({found.store_host}) is this machine"
        where = f"the interface towards ranks on other machines: {here}"
    return Finding("interface", "ok", where)


def check_gloo(environment: Mapping[str, str]) -> Finding:
    """Open Gloo's device, and return a finding on whether Gloo can listen. This imports torch.

    If ``GLOO_SOCKET_IFNAME`` is unset, a script's Gloo groups listen at the address to which the
    host's name resolves.
    """
    named = addresses.gloo_interfaces(environment)
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        return Finding("Gloo", "FAIL", "this torch was built without Gloo; install torch from pytorch.org")
    remedy = f"set {addresses.VARIABLE} to one of: {_others(addresses.interfaces())}"
    try:
        for name in named:
            dist.ProcessGroupGloo.create_device(interface=name)
        if not named:
            dist.ProcessGroupGloo.create_default_device()
    except RuntimeError as error:
        problem = f"Gloo cannot listen: {str(error).splitlines()[0].rpartition('] ')[2]}"
        return Finding("Gloo", "FAIL", f"{problem}; unset GLOO_DEVICE_TRANSPORT, or {remedy}")
    address = "" if named else addresses.address_of_name()
    if address and addresses.is_loopback(address):
        local = f"a script's groups of the backend gloo listen at {address} (by the host's name)"
        reach = "which only this machine can reach; if such groups span machines"
        return Finding("Gloo", "warn", f"{local}, {reach}, {remedy}")
    return Finding("Gloo", "ok", "available, and can listen")

"""TLS of gradwire's frames, which three variables switch on: whether it would start, and until when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from gradwire.doctor.finding import Finding
from gradwire.errors import LinkError
from gradwire.links.rendezvous.tls import CERTIFICATE, KEY, encryption

TRANSPORT = "GLOO_DEVICE_TRANSPORT"
SOON = timedelta(days=14)


def check_tls(environment: Mapping[str, str], now: datetime | None = None) -> Finding:
    """Judge what ``GRADWIRE_TLS_KEY``, ``GRADWIRE_TLS_CERT`` and ``GRADWIRE_TLS_CA`` ask for.

    The files are read. ``now`` is the present time, with a time zone.
    """
    try:
        found = encryption(environment)
    except LinkError as error:
        return Finding("TLS", "FAIL", str(error))
    if found is not None:
        ends = datetime.fromtimestamp(found.expires_s, UTC)
        return _check_expiry(environment[CERTIFICATE], ends, now or datetime.now(UTC))
    transport = environment.get(TRANSPORT, "TCP")
    if transport != "TCP":
        return Finding(
            "TLS",
            "FAIL",
            f"{TRANSPORT} is {transport}, which does not reach gradwire's frames; set GRADWIRE_TLS_KEY, "
            "GRADWIRE_TLS_CERT and GRADWIRE_TLS_CA to encrypt those, or unset it",
        )
    return Finding(
        "TLS", "ok", f"off ({KEY} is not set): gradients travel unencrypted, as is usual in a private network"
    )


def _check_expiry(certificate: str, ends: datetime, now: datetime) -> Finding:
    if now + SOON > ends:
        return Finding("TLS", "warn", f"the certificate {certificate} expires on {ends:%Y-%m-%d}; renew it")
    return Finding("TLS", "ok", f"on; the files fit; valid until {ends:%Y-%m-%d}")

"""Gloo's TLS, which a few variables switch on: whether its files are there, and fit, and until when."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gradwire.doctor.certificate import NotACertificateError, read_validity
from gradwire.doctor.finding import Finding

TRANSPORT = "GLOO_DEVICE_TRANSPORT"
KEY, CERTIFICATE, AUTHORITY = (f"{TRANSPORT}_TCP_TLS_{word}" for word in ("PKEY", "CERT", "CA_FILE"))
AUTHORITIES = f"{TRANSPORT}_TCP_TLS_CA_PATH"
SOON = timedelta(days=14)


def check_tls(environment: Mapping[str, str], now: datetime | None = None) -> Finding:
    """Judge what ``GLOO_DEVICE_TRANSPORT`` and its companions ask for.

    Parameters
    ----------
    environment
        The variables; files are read.
    now
        The present time, with a time zone.
    """
    transport = environment.get(TRANSPORT, "")
    if transport != "TCP_TLS":
        plain = f"off ({TRANSPORT}={transport})" if transport else f"off ({TRANSPORT} is not set)"
        return Finding(
            "TLS", "ok", f"{plain}: gradients travel unencrypted, as is usual in a private network"
        )
    complaint = _file_complaint(environment) or _pair_complaint(environment)
    if complaint:
        return Finding("TLS", "FAIL", complaint)
    return _check_validity(Path(environment[CERTIFICATE]), now or datetime.now(UTC))


def _file_complaint(environment: Mapping[str, str]) -> str:
    """Return what is wrong with the files, "" if nothing is."""
    if not environment.get(AUTHORITY) and not environment.get(AUTHORITIES):
        return f"{TRANSPORT} is TCP_TLS, which needs {AUTHORITY} or {AUTHORITIES}; set one"
    for variable in (KEY, CERTIFICATE, AUTHORITY, AUTHORITIES):
        text = environment.get(variable, "")
        if not text and variable in (AUTHORITY, AUTHORITIES):
            continue
        if not text:
            return f"{TRANSPORT} is TCP_TLS, which needs {variable}; set it to a file in PEM"
        is_there = Path(text).is_dir() if variable == AUTHORITIES else Path(text).is_file()
        if not is_there:
            return (
                f"{variable} names {text}, which is no {'folder' if variable == AUTHORITIES else 'file'} here"
            )
        if not os.access(text, os.R_OK):
            return f"{variable} names {text}, which this user may not read; change its owner or mode"
    return ""


def _pair_complaint(environment: Mapping[str, str]) -> str:
    """Return why certificate, key and authority do not fit, "" if they do."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_cert_chain(environment[CERTIFICATE], environment[KEY], password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        return f"{CERTIFICATE} and {KEY} are no pair in PEM without a password: {_reason(error)}"
    authority = environment.get(AUTHORITY)
    try:
        if authority:
            context.load_verify_locations(cafile=authority)
    except (ssl.SSLError, OSError) as error:
        return f"{AUTHORITY} names {authority}, which holds no certificate in PEM: {_reason(error)}"
    return ""


def _reason(error: OSError) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or type(error).__name__


def _check_validity(path: Path, now: datetime) -> Finding:
    try:
        begins, ends = read_validity(path.read_text(encoding="ascii", errors="replace"))
    except NotACertificateError:
        return Finding("TLS", "ok", f"on; the files fit; until when {path} is valid could not be read")
    if now < begins:
        return Finding(
            "TLS", "FAIL", f"the certificate {path} is valid from {begins:%Y-%m-%d}; is the clock right?"
        )
    if now > ends:
        return Finding("TLS", "FAIL", f"the certificate {path} has expired on {ends:%Y-%m-%d}; renew it")
    if now + SOON > ends:
        return Finding("TLS", "warn", f"the certificate {path} expires on {ends:%Y-%m-%d}; renew it")
    return Finding("TLS", "ok", f"on; the files fit; valid until {ends:%Y-%m-%d}")

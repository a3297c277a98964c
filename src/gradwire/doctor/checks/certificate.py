"""From when until when a certificate is valid: the one field of X.509 that is read here.

Python's own ssl module decodes only certificates of authorities and of peers, not a file's. The structure
(RFC 5280, section 4.1) is walked by its lengths: SEQUENCE { SEQUENCE { [0] version, serial, algorithm,
issuer, validity { begins, ends }, ... } ... }.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x17, 0x18
_VALIDITY = 3
"""Its place behind serial, algorithm and issuer."""


class NotACertificateError(ValueError):
    """A text that holds no certificate, or one that cannot be followed."""


def read_validity(pem: str) -> tuple[datetime, datetime]:
    """Return from when until when the first certificate of a PEM text is valid.

    Raises
    ------
    NotACertificateError
        Where there is none that can be read.
    """
    start, stop = pem.find(_BEGIN), pem.find(_END)
    try:
        der = ssl.PEM_cert_to_DER_cert(pem[start : stop + len(_END)])
        ((_, certificate),) = _parts(der)
        fields = list(_parts(next(_parts(certificate))[1]))
        validity = fields[_VALIDITY + (fields[0][0] == _VERSION)][1]
        (begins, ends) = (_time(tag, content) for tag, content in _parts(validity))
    except (ValueError, IndexError, StopIteration) as error:
        raise NotACertificateError("the text holds no X.509 certificate in PEM") from error
    return begins, ends


def _parts(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of the elements that ``content`` consists of."""
    at = 0
    while at < len(content):
        tag, size, at = content[at], content[at + 1], at + 2
        if size & 0x80:
            width = size & 0x7F
            size, at = int.from_bytes(content[at : at + width]), at + width
        if at + size > len(content):
            raise ValueError("an element is longer than what holds it")
        yield tag, content[at : at + size]
        at += size


def _time(tag: int, content: bytes) -> datetime:
    """Read ``YYMMDDHHMMSSZ``, whose years are 1950 to 2049, or ``YYYYMMDDHHMMSSZ``."""
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        text = f"{'19' if text[:2] >= '50' else '20'}{text}"
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"tag {tag} is no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)

"""Whose certificate a rank may show, if ``GRADWIRE_TLS_NAMES`` says it: ``0-7=host1, 8-15=host2, *=spare``.

A name is compared with the certificate's alternative names (of hosts and addresses), and with its common name
where it has none of these; upper and lower case are the same, and a ``*`` in a certificate means nothing. A
rank for which several entries have a name may show any of them. Ranks are those of ``torch.distributed``'s
world.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gradwire.errors import LinkError, shown

NAMES = "GRADWIRE_TLS_NAMES"
_ENTRY = re.compile(r"(?:(\d+)(?:-(\d+))?|\*)=([^\s,=]+)")


class Names:
    """The names that ranks may have. Raises ``LinkError`` unless the text is a list of them."""

    def __init__(self, text: str) -> None:
        self._entries = [_entry(part) for part in re.split(r"[\s,]+", text.strip(" ,\n\t"))]

    def of(self, rank: int) -> frozenset[str]:
        """Return the names that ``rank`` may have. Raises ``LinkError`` where it may have none."""
        found = frozenset(name for low, high, name in self._entries if low <= rank <= high)
        if not found:
            raise LinkError(f"{NAMES} has no name for rank {rank}; add {rank}=NAME, or *=NAME for all ranks")
        return found


def names_in(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the names that a certificate has, as Python's ``getpeercert`` tells it."""
    told = certificate or {}
    others = [name for kind, name in told.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    commons = [name for part in told.get("subject", ()) for kind, name in part if kind == "commonName"]
    return frozenset(name.lower() for name in others or commons)


def check_name(rank: int, wanted: frozenset[str], certificate: Mapping[str, Any] | None) -> None:
    """Raise ``LinkError`` unless the certificate that ``rank`` shows has a name that it may have."""
    found = names_in(certificate)
    if not found & wanted:
        has = " and ".join(sorted(found)) or "no name"
        raise LinkError(
            f"the certificate of rank {rank} is that of {has}, where {NAMES} wants "
            f"{' or '.join(sorted(wanted))}"
        )


def _entry(text: str) -> tuple[int, float, str]:
    match = _ENTRY.fullmatch(text)
    if match is None:
        raise LinkError(
            f"{NAMES} wants entries such as 0=host1, 8-15=host2 or *=host3, but has {shown(text)}"
        )
    low, high, name = match.groups()
    if low is None:
        return 0, float("inf"), name.lower()
    return int(low), int(high or low), name.lower()

"""Either all ranks of a link encrypt or none."""

from __future__ import annotations

from gradwire.errors import LinkError
from gradwire.links.rendezvous.endpoints import Place
from gradwire.links.rendezvous.tls import Encryption

_MANNERS = ("in plain text", "with TLS")


def check_manners(place: Place | None, peer: int, encryption: Encryption | None) -> None:
    """Raise ``LinkError`` where one of the two encrypts and the other does not, if ``peer`` has told that."""
    if place is not None and place.encrypts != (encryption is not None):
        raise LinkError(
            f"by the store rank {peer} talks {_MANNERS[place.encrypts]}, but this rank "
            f"{_MANNERS[not place.encrypts]}; set GRADWIRE_TLS_KEY, GRADWIRE_TLS_CERT and GRADWIRE_TLS_CA "
            "for all ranks or for none"
        )

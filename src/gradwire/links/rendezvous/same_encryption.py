"""Either all ranks of a link encrypt or none, and none where NICs are to compress."""

from __future__ import annotations

from gradwire.errors import LinkError
from gradwire.links.rendezvous.endpoints import Endpoint
from gradwire.links.rendezvous.tls import Encryption

_MODES = ("in plain text", "with TLS")


def check_same_encryption(endpoint: Endpoint | None, name: str, encryption: Encryption | None) -> None:
    """Raise ``LinkError`` where either this rank or the one called ``name`` encrypts, if that is known."""
    if endpoint is not None and endpoint.encrypts != (encryption is not None):
        raise LinkError(
            f"by the store {name} talks {_MODES[endpoint.encrypts]}, but this rank "
            f"{_MODES[not endpoint.encrypts]}; set GRADWIRE_TLS_KEY, GRADWIRE_TLS_CERT and GRADWIRE_TLS_CA "
            "for all ranks or for none"
        )


def refuse_marks(tos: int, rank: int, world: int) -> None:
    """Raise ``LinkError`` where values are to go by connections that are marked with ``tos``, despite TLS."""
    if tos:
        raise LinkError(
            f"rank {rank} connecting with the {world} ranks of its group: a plan with offload lets NICs "
            "compress values, which they cannot do with TLS; unset GRADWIRE_TLS_KEY, GRADWIRE_TLS_CERT and "
            "GRADWIRE_TLS_CA, or leave out offload"
        )

"""Whoever does not encrypt as this rank does is refused before it is called."""

from __future__ import annotations

import pytest

from gradwire.errors import LinkError
from gradwire.links.rendezvous.attempt import check_same_encryption
from gradwire.links.rendezvous.endpoints import Endpoint
from gradwire.links.rendezvous.tls import encryption
from support.certificates import needs_openssl, variables

PLAIN, SECRET = (Endpoint("127.0.0.1", 9, bytes(16), encrypts) for encrypts in (False, True))
EXPECTED = "expected the same encryption on all ranks,"
ADVICE = "set GRADWIRE_TLS_KEY, GRADWIRE_TLS_CERT and GRADWIRE_TLS_CA for all ranks or for none"


def test_in_plain_text_only_who_encrypts_is_refused() -> None:
    check_same_encryption(PLAIN, "rank 3", None)
    with pytest.raises(LinkError) as caught:
        check_same_encryption(SECRET, "rank 3", None)
    assert str(caught.value) == f"{EXPECTED} got rank 3 with TLS and this rank in plain text; {ADVICE}"


@needs_openssl
def test_with_tls_only_who_does_not_encrypt_is_refused() -> None:
    ours = encryption(variables())
    check_same_encryption(SECRET, "rank 3", ours)
    with pytest.raises(LinkError) as caught:
        check_same_encryption(PLAIN, "rank 3", ours)
    assert str(caught.value) == f"{EXPECTED} got rank 3 in plain text and this rank with TLS; {ADVICE}"


@needs_openssl
def test_of_who_has_not_come_nothing_is_known() -> None:
    check_same_encryption(None, "rank 3", None)
    check_same_encryption(None, "rank 3", encryption(variables()))

"""Who gets in with TLS, and what is refused: certificates, variables, files."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.links.rendezvous.connect import connect_ranks
from gradwire.links.rendezvous.tls import VARIABLES, EncryptedSocket, encrypted, encryption
from support.certificates import needs_openssl, variables
from support.endpoints import names
from support.meshes import Meshes, answer, linked

RunProcesses = Callable[..., list[Any]]
RunRanks = Callable[..., list[Any]]
TIMEOUT_S = 3.0
BEYOND_ALL_BUFFERS = 48 << 20
pytestmark = needs_openssl


def met(environments: list[dict[str, str]]) -> list[dict[int, socket.socket] | LinkError]:
    """Let ranks with these variables connect; return the connections, or the error, of each."""
    store = HashStore()

    def one(rank: int) -> dict[int, socket.socket] | LinkError:
        try:
            return connect_ranks(
                store, rank, names(len(environments)), TIMEOUT_S, encryption(environments[rank])
            )
        except LinkError as error:
            return error

    with patch.dict(os.environ, GLOO_SOCKET_IFNAME="lo"), ThreadPoolExecutor(len(environments)) as pool:
        return list(pool.map(one, range(len(environments))))


def errors(environments: list[dict[str, str]]) -> list[str]:
    """Let ranks connect, none of whom shall; return what they say."""
    started = time.monotonic()
    found = met(environments)
    assert time.monotonic() - started < TIMEOUT_S + 5
    assert all(isinstance(each, LinkError) for each in found), found
    return [str(each) for each in found]


def test_ranks_with_certificates_of_one_authority_connect() -> None:
    found = met([variables()] * 4)
    assert all(isinstance(each, dict) for each in found), found
    connections: Meshes = [each for each in found if isinstance(each, dict)]
    for rank, mine in enumerate(connections):
        assert sorted(mine) == [other for other in range(4) if other != rank]
        for each in mine.values():
            assert isinstance(each, EncryptedSocket)
            assert each.version() == "TLSv1.3"
            assert each.gettimeout() == 0
    links = linked(connections, TIMEOUT_S)
    links[3].isend(1, torch.arange(100, dtype=torch.uint8)).wait()
    assert links[1].irecv(3, torch.zeros(200, dtype=torch.uint8)).wait().tolist() == list(range(100))
    for link in links:
        link.close()


def test_who_has_a_certificate_of_another_authority_is_refused_on_both_sides() -> None:
    for environments in ([variables(), variables("other")], [variables("other"), variables()]):
        for rank, message in enumerate(errors(environments)):
            assert message.startswith(f"rank {rank} connecting with the 2 ranks of its group: the TLS ")
            assert f"handshake with rank {1 - rank} failed (" in message
            assert "use certificates signed by the authority in GRADWIRE_TLS_CA" in message


def test_a_caller_whom_only_the_other_end_refuses_is_told_so(tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    authorities = [each["GRADWIRE_TLS_CA"] for each in (variables(), variables("other"))]
    both.write_text("".join(Path(each).read_text() for each in authorities))
    answering, calling = errors([variables(), {**variables("other"), "GRADWIRE_TLS_CA": str(both)}])
    assert "the TLS handshake with rank 1 failed (self" in answering  # signed, in words of the version
    assert "the TLS handshake with rank 0 failed (TLSV1_ALERT_UNKNOWN_CA)" in calling


@pytest.mark.parametrize("encrypting", [0, 1])
def test_where_only_some_encrypt_all_are_told(encrypting: int) -> None:
    environments: list[dict[str, str]] = [{}, {}]
    environments[encrypting] = variables()
    messages = errors(environments)
    plain = 1 - encrypting
    assert f"got rank {plain} in plain text and this rank with TLS; set" in messages[encrypting]
    assert f"got rank {encrypting} with TLS and this rank in plain text; set" in messages[plain]


def test_a_peer_that_says_nothing_in_the_handshake_is_a_timeout() -> None:
    ours = encryption(variables())
    assert ours is not None
    here, there = socket.socketpair()
    with there, pytest.raises(LinkTimeoutError, match="rank 1 did not finish the TLS handshake"):
        encrypted(here, ours, 1, b"hello", b"hello", 0.2)
    assert here.fileno() == -1


def test_words_that_somebody_altered_on_the_way_are_found_out() -> None:
    ours = encryption(variables())
    assert ours is not None
    here, there = socket.socketpair()
    with ThreadPoolExecutor(1) as other:
        answered = other.submit(answer, there, ours, 1, b"low", b"rank 2")
        with (
            encrypted(here, ours, 0, b"rank 1", b"low", 5.0),
            pytest.raises(LinkError, match="expected the same hello from rank 1 before and after"),
        ):
            answered.result()


@pytest.mark.parametrize("missing", VARIABLES)
def test_some_variables_without_the_others_are_an_error(missing: str) -> None:
    environment = {name: value for name, value in variables().items() if name != missing}
    with pytest.raises(LinkError, match=rf"are set, but {missing} is not; set all three, or none"):
        encryption(environment)
    with pytest.raises(LinkError, match=rf"{missing} is set, but .* and .* are not"):
        encryption({missing: variables()[missing]})


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_file_that_is_not_there_or_not_to_be_read_is_an_error(variable: str, tmp_path: Path) -> None:
    for name in ("/nowhere/x.pem", ""):
        with pytest.raises(LinkError, match=rf"{variable}: expected a file, got '{name}'"):
            encryption({**variables(), variable: name})
    with (
        patch("os.access", return_value=False),  # root reads everything
        pytest.raises(LinkError, match=r"GRADWIRE_TLS_KEY: this user cannot read .*; change the file's"),
    ):
        encryption(variables())
    (tmp_path / "rubbish.pem").write_text("rubbish")
    with pytest.raises(LinkError, match=r"a matching pair in PEM without a|expected a certificate in PEM"):
        encryption({**variables(), variable: str(tmp_path / "rubbish.pem")})


def test_a_certificate_of_another_authority_is_an_error_before_anybody_is_called() -> None:
    with pytest.raises(LinkError, match=r"ranks that trust the authority .*ca\.pem would refuse .*; sign"):
        encryption({**variables(), "GRADWIRE_TLS_CA": variables("other")["GRADWIRE_TLS_CA"]})


def test_without_variables_nothing_is_encrypted() -> None:
    assert encryption({}) is None

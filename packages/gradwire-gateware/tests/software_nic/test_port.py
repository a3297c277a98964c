from __future__ import annotations

import socket

import pytest

from gradwire.errors import NicError
from gradwire_gateware.software_nic.card import EthernetPort


def test_without_the_right_to_read_frames_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(NicError, match=r"got none; run gradwire nic as root, or with CAP_NET_RAW"):
        EthernetPort("eth0")

from __future__ import annotations

import os
import threading

import pytest

from gradwire_lab.testbed.runner import pair


def test_messages_arrive_whole_and_in_order() -> None:
    one, other = pair()
    large = {"told": "x" * 3_000_000, "odd": os.fsdecode(b"\xff\xfe")}

    def send() -> None:
        one.send({"n": 1})
        one.send(large)

    sender = threading.Thread(target=send)
    sender.start()
    assert other.receive(10) == ({"n": 1}, [])
    assert other.receive(10) == (large, [])
    sender.join()
    one.close()
    assert other.receive(10) is None
    other.close()


def test_open_files_arrive_and_are_not_inherited() -> None:
    one, other = pair()
    out, into = os.pipe()
    one.send({"do": "start"}, [into] * 128)
    received = other.receive(10)
    assert received is not None
    files = received[1]
    assert len(files) == 128
    os.write(files[77], b"through")
    assert os.read(out, 100) == b"through"
    assert not any(map(os.get_inheritable, files))
    for file in (out, into, *files):
        os.close(file)
    one.close()
    with pytest.raises(BrokenPipeError):
        other.send({"told": "late"})
    other.close()


def test_waiting_has_an_end() -> None:
    one, other = pair()
    with pytest.raises(TimeoutError):
        one.receive(0.01)
    one.close()
    other.close()


def test_an_end_in_the_middle_of_a_message_is_an_end() -> None:
    one, other = pair()
    os.write(one.fileno(), b"\0\0\0\x09{")
    one.close()
    assert other.receive(10) is None
    other.close()

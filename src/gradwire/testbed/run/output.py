"""The hosts' output: split into lines, shown with the host's name in front, and saved in files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Literal, TextIO

from gradwire.errors import TestbedError
from gradwire.testbed.network.topology import host_name

Stream = Literal["out", "err"]
STREAMS: tuple[Stream, Stream] = ("out", "err")
Sink = Callable[[int, Stream, bytes], None]
"""Takes a host, its stream, and whole lines; only the last line of a stream may lack its newline."""
_LONGEST_LINE_NBYTES = 1 << 16


class Lines:
    """Passes a stream to its sinks line by line, so that lines of different hosts don't mix."""

    def __init__(self, host: int, stream: Stream, sinks: tuple[Sink, ...]) -> None:
        self._host, self._stream, self._sinks = host, stream, sinks
        self._rest = b""

    def take(self, text: bytes) -> None:
        """Pass on complete lines; no bytes mean that the stream has ended."""
        whole = self._rest + text
        end = whole.rfind(b"\n") + 1
        if not text or len(whole) - end > _LONGEST_LINE_NBYTES:
            end = len(whole)
        self._rest = whole[end:]
        if end:
            for sink in self._sinks:
                sink(self._host, self._stream, whole[:end])


def show(host: int, stream: Stream, text: bytes) -> None:
    """Write lines to this process's own standard output or error, with the host's name in front."""
    own: TextIO = sys.stdout if stream == "out" else sys.stderr
    letters = own.encoding or "utf-8"
    words = text.decode(errors="backslashreplace").encode(letters, "backslashreplace").decode(letters)
    lines = words.removesuffix("\n").split("\n")
    own.write("".join(f"{host_name(host)} | {line}\n" for line in lines))
    own.flush()


class Logs:
    """A file for each stream of each host, ``h0.out`` and ``h0.err`` and so on, as the host wrote it.

    Raises ``TestbedError`` if the folder can't be written, before anything is started.
    """

    def __init__(self, folder: Path, hosts: int) -> None:
        self._files: dict[tuple[int, Stream], BinaryIO] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for host in range(hosts):
                for stream in STREAMS:
                    path = folder / f"{host_name(host)}.{stream}"
                    self._files[host, stream] = path.open("wb", buffering=0)
        except OSError as error:
            self.close()
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise TestbedError(f"{folder} cannot be written: {reason}; name another folder") from error

    def __call__(self, host: int, stream: Stream, text: bytes) -> None:
        """Keep lines."""
        self._files[host, stream].write(text)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gradwire.errors import DataError
from gradwire_lab.job.data import fetch, md5_of

CONTENT = bytes(range(256)) * 1000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[: len(CONTENT) // 2] if self.path == "/cut" else CONTENT)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_file_arrives_whole(server: str, tmp_path: Path) -> None:
    fetch(f"{server}/file", MD5, tmp_path / "new" / "file")
    assert (tmp_path / "new" / "file").read_bytes() == CONTENT
    assert md5_of(tmp_path / "new" / "file") == MD5


@pytest.mark.parametrize(
    ("path", "md5", "reason"),
    [
        ("file", "0" * 32, f"expected MD5 {'0' * 32} from .*, got {MD5}"),
        ("missing", MD5, "404 Not Found"),
        ("cut", MD5, "after 128000 of 256000 bytes"),
    ],
)
def test_a_bad_answer_leaves_the_folder_as_it_was(
    server: str, tmp_path: Path, path: str, md5: str, reason: str
) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"older")
    with pytest.raises(DataError, match=reason):
        fetch(f"{server}/{path}", md5, target)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert target.read_bytes() == b"older"


def test_no_network_is_said(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(DataError, match=r"cannot download http://127\.0\.0\.1"):
            fetch(f"http://127.0.0.1:{port}/file", MD5, tmp_path / "file")
    assert not list(tmp_path.iterdir())


def test_a_silent_server_is_left_in_time(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(DataError, match="timed out"):
            fetch(f"http://127.0.0.1:{silent.getsockname()[1]}/file", MD5, tmp_path / "file", timeout_s=0.2)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot write"):
        fetch("http://127.0.0.1:9/file", MD5, tmp_path / "file" / "below")

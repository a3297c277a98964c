"""A local job's store in this network, and a stranger in another that tries to reach it; prints what came."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from gradwire.launch.rendezvous import join_store, open_store

ADDRESS, STRANGER = "10.88.0.1", "10.88.0.2"
TRY = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5)
    print("reached")
except ConnectionRefusedError:
    print("refused")
"""


def main() -> None:
    there = subprocess.Popen(["unshare", "--net", "sleep", "60"])
    try:
        look(there)
    finally:
        there.kill()
        there.wait()


def look(there: subprocess.Popen[bytes]) -> None:
    ip("link", "set", "lo", "up")
    entered = ["nsenter", f"--net=/proc/{there.pid}/ns/net"]
    while own_network(there.pid) == own_network("self"):
        pass
    ip("link", "add", "here", "type", "veth", "peer", "name", "there", "netns", str(there.pid))
    ip("address", "add", f"{ADDRESS}/24", "dev", "here")
    ip("link", "set", "here", "up")
    for words in (("address", "add", f"{STRANGER}/24", "dev", "there"), ("link", "set", "there", "up")):
        subprocess.run([*entered, "ip", *words], check=True)
    said: list[str] = []
    store = open_store(5.0)
    join_store(store.port, 5.0).set("own", "value")
    with socket.create_server(("", 0)) as anybodys:
        for name, port in (("anybody's", anybodys.getsockname()[1]), ("store", store.port)):
            tried = subprocess.run(
                [*entered, sys.executable, "-c", TRY, ADDRESS, str(port)],
                check=True,
                capture_output=True,
                text=True,
            )
            said += [name, tried.stdout.strip()]
    said += ["own", store.get("own").decode()]
    sys.stdout.write(" ".join(said))


def own_network(process: int | str) -> str:
    return os.readlink(f"/proc/{process}/ns/net")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


if __name__ == "__main__":
    main()

"""The programs that create a testbed, and the private namespaces that it runs in."""

from __future__ import annotations

import os
import shutil
import subprocess

from gradwire.errors import TestbedError

_PACKAGES = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux"}
_SYSTEM_FOLDERS = "/usr/sbin:/sbin"  # which an ordinary user's PATH may lack
_PROBE_TIMEOUT_S = 10.0
_AREA = (
    "--net",
    "--mount",
    "--propagation=slave",  # what is mounted later is seen inside as well
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
_AS_ONESELF = ("--user", "--map-current-user", "--keep-caps")
"""An ordinary user can create a network inside a user namespace, and remains the same user."""


def find_tool(name: str) -> str:
    """Return the path of ``ip``, ``tc`` or ``unshare``. Raises ``TestbedError`` if it is missing."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_FOLDERS}")
    if path is None:
        raise TestbedError(f"a testbed needs the program {name!r}; install {_PACKAGES[name]}")
    return path


def private_area() -> list[str]:
    """Return the command that starts a program as the first process of private namespaces.

    The namespaces have their own network and process IDs. When the first process ends, for whatever reason,
    the kernel ends and removes everything inside. Raises ``TestbedError`` if a program is missing, or this
    user may not create such namespaces.
    """
    for name in _PACKAGES:
        find_tool(name)
    unshare, reason = find_tool("unshare"), ""
    for words in ([unshare, *_AREA], [unshare, *_AS_ONESELF, *_AREA])[os.geteuid() != 0 :]:
        reason = _refusal(words)
        if not reason:
            return [*words, "--"]
    raise TestbedError(
        f"a testbed needs network namespaces, which this machine refuses ({reason}); run as root, or allow "
        "user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
        "kernel.apparmor_restrict_unprivileged_userns)"
    )


def _refusal(words: list[str]) -> str:
    """Return why ``unshare`` can't create the namespaces, or an empty text if it can."""
    try:
        done = subprocess.run(
            [*words, "--", "true"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"unshare did not end within {_PROBE_TIMEOUT_S:g} s"
    if done.returncode == 0:
        return ""
    complaint = done.stderr.strip().splitlines() or [f"unshare ended with exit code {done.returncode}"]
    return complaint[0]

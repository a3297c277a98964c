"""Atomic writes of result files, early checks that files can be written, and the cache folder."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from gradwire.errors import JobError, SpecError

Content = bytes | Callable[[BinaryIO], object]
"""The content of a file: bytes, or a function that writes to the open file, and may also read it."""
_DEVICES = Path("/dev")
STANDARD_OUTPUT = Path("-")
"""The path ``-``, for which ``write_files`` writes to standard output instead of to a file."""
MOST_TEXT_NBYTES = 1 << 28
"""The largest size of a record that is read, in bytes: far above any command's record, far below memory."""


def cache_folder() -> Path:
    """Return gradwire's cache folder: ``$XDG_CACHE_HOME/gradwire`` or ``~/.cache/gradwire``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gradwire"


def open_ordinary(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading. Raises ``OSError``, also for a pipe, which may never end."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except ValueError as error:  # a NUL, or a lone surrogate
        raise OSError(errno.EINVAL, f"its name is not a valid file name: {error}") from error
    mode = os.fstat(opened).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(opened, "rb")
    os.close(opened)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file")


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a regular file of limited size. Raises ``OSError`` and ``UnicodeDecodeError``."""
    with open_ordinary(path) as file:
        if os.fstat(file.fileno()).st_size > MOST_TEXT_NBYTES:
            raise OSError(errno.EFBIG, f"it is larger than {MOST_TEXT_NBYTES} bytes")
        return file.read(MOST_TEXT_NBYTES).decode()


def write_files(files: Mapping[Path, Content]) -> None:
    """Write ``files`` (path -> content), either all or none, and create their folders. Raises ``JobError``.

    The files have temporary names until the last file is on the disk. Then they are renamed, and the folders
    are synced. Therefore, each file has either its old or its new content after a power failure. Bytes for
    ``STANDARD_OUTPUT`` are printed last.
    """
    printed = files.get(STANDARD_OUTPUT)
    if isinstance(printed, bytes):
        files = {path: content for path, content in files.items() if path != STANDARD_OUTPUT}
    temporary: dict[Path, Path] = {}
    place = Path()
    try:
        for path, content in files.items():
            place = path.parent
            place.mkdir(parents=True, exist_ok=True)
            if path.is_dir():  # a rename would fail after the renames of other files
                raise IsADirectoryError(errno.EISDIR, f"{path.name} is a folder")
            temporary[path] = _write_beside(path, content, sync=True)
        for path, part in temporary.items():
            place = path.parent
            os.replace(part, path)
        for place in dict.fromkeys(path.parent for path in files):
            _sync_folder(place)
    except OSError as error:
        raise JobError(
            f"the results cannot be written to {place}: {error.strerror or error}; pass a path in a writable "
            "folder"
        ) from error
    finally:
        for part in temporary.values():
            with suppress(OSError):
                part.unlink()
    if isinstance(printed, bytes):
        _print(printed)


_kept_output: list[TextIO | int] = []
"""The original standard output, or its descriptor, during ``output_kept_for_files``; otherwise empty."""


def _print(content: bytes) -> None:
    out = _kept_output[-1] if _kept_output else sys.stdout
    if isinstance(out, int):
        while content:
            content = content[os.write(out, content) :]
    else:
        out.write(content.decode())
        out.flush()


@contextmanager
def output_kept_for_files() -> Iterator[None]:
    """Run a ``with`` block: only ``write_files`` prints to standard output, all else to standard error."""
    sys.stdout.flush()
    with ExitStack() as undo:
        kept: TextIO | int = sys.stdout
        if _is_descriptor(sys.stdout, 1):
            kept = os.dup(1)
            undo.callback(os.close, kept)
            undo.callback(os.dup2, kept, 1)
            os.dup2(2, 1)
        undo.callback(setattr, sys, "stdout", sys.stdout)
        sys.stdout = sys.stderr
        _kept_output.append(kept)
        undo.callback(_kept_output.pop)
        yield


def _is_descriptor(stream: TextIO, number: int) -> bool:
    try:
        return stream.fileno() == number
    except (OSError, ValueError):
        return False


def replace_file(path: Path, content: Content) -> None:
    """Write one file in an existing folder atomically, without syncing. Raises ``OSError``."""
    part = _write_beside(path, content, sync=False)
    try:
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _write_beside(path: Path, content: Content, *, sync: bool) -> Path:
    """Write a temporary file in the folder of ``path``, and return the temporary file's path.

    The random name is unique among threads, and among hosts with a shared file system.
    """
    part = path.parent / f".gradwire-{secrets.token_hex(8)}"
    opened = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    try:
        with os.fdopen(opened, "w+b") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                content(file)
            if sync:
                file.flush()
                os.fsync(opened)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return part


def _sync_folder(folder: Path) -> None:
    """Sync a folder, so that renamed files survive a power failure, if the file system supports syncing."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems can't sync folders
            os.fsync(opened)
    finally:
        os.close(opened)


def check_writable(option: str, path: Path, overwrite: bool) -> None:
    """Raise ``JobError`` with the name of ``option`` if ``path`` can't be written or is an older result."""
    if path == STANDARD_OUTPUT:
        return
    place = path.parent
    try:
        if path.is_dir():
            raise JobError(f"{option} {path} is a folder; pass a file")
        if place.resolve() == _DEVICES or (path.exists() and not path.is_file()):
            raise JobError(f"expected a regular file for {option}, got {path}; pass another file")
    except OSError as error:
        raise _refused(option, path, place, "file", error) from error
    _try_folder(option, path, place, "file")
    if path.exists() and not overwrite:
        raise JobError(f"{option} {path} already exists; pass another file, or --overwrite")


def check_replaceable(path: Path, overwrite: bool, read: Callable[[Path], object]) -> None:
    """Raise ``OSError`` unless ``path`` is free, or a file that ``read`` accepts or ``overwrite`` allows.

    ``read`` raises ``SpecError`` for any other file.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder; pass a file")
    if path.exists() and not path.is_file():
        raise OSError(errno.EEXIST, "it is not a regular file; pass another file")
    if not overwrite and path.exists() and path.stat().st_size > 0:
        try:
            read(path)
        except SpecError as error:
            found = "the file has other content; pass another file, or overwrite=True"
            raise OSError(errno.EEXIST, found) from error


def check_folder_new(option: str, folder: Path, names: Sequence[str], overwrite: bool) -> None:
    """Raise ``JobError`` with the name of ``option`` if ``folder`` contains files of these names."""
    older = [name for name in names if (folder / name).exists()]
    if older and not overwrite:
        raise JobError(
            f"{option} {folder} contains an older result ({' and '.join(older)}); pass another folder, or "
            "--overwrite"
        )


def check_folder_writable(option: str, folder: Path) -> None:
    """Raise ``JobError`` with the name of ``option`` unless ``folder`` is writable; leave nothing in it."""
    _try_folder(option, folder, folder, "folder")


def _try_folder(option: str, path: Path, place: Path, kind: str) -> None:
    """Try to create a temporary folder in the nearest existing parent of ``place``. Raises ``JobError``."""
    try:
        while not (place.is_symlink() or place.exists()) and place != place.parent:
            place = place.parent
        with tempfile.TemporaryDirectory(prefix=".gradwire-", dir=place):
            pass
    except OSError as error:
        raise _refused(option, path, place, kind, error) from error


def _refused(option: str, path: Path, place: Path, kind: str, error: OSError) -> JobError:
    reason = error.strerror or error
    return JobError(f"{option} {path} cannot be written: {place}: {reason}; pass another {kind}")

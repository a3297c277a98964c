"""Write result files all at once or not at all, and check early that they can be; where the cache is."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from gradwire.errors import JobError, SpecError

Content = bytes | Callable[[BinaryIO], object]
"""The bytes of a file, or a function that writes them to it, and may read them again."""
_DEVICES = Path("/dev")
MOST_TEXT_NBYTES = 1 << 28
"""The longest record that is read: far above what any command writes, and it fits the memory."""


def cache_folder() -> Path:
    """Return gradwire's cache folder: ``$XDG_CACHE_HOME/gradwire``, else ``~/.cache/gradwire``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gradwire"


def open_ordinary(path: str | os.PathLike[str]) -> BinaryIO:
    """Open an ordinary file for reading. Raises ``OSError``, also for a pipe, which may never end."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except ValueError as error:  # a NUL, or a lone surrogate
        raise OSError(errno.EINVAL, f"its name is no file's: {error}") from error
    mode = os.fstat(opened).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(opened, "rb")
    os.close(opened)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, "it is a pipe or a device; save its content in an ordinary file")


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of an ordinary file of at most ``MOST_TEXT_NBYTES``.

    Raises ``OSError``, and ``UnicodeDecodeError`` for what is no UTF-8.
    """
    with open_ordinary(path) as file:
        if os.fstat(file.fileno()).st_size > MOST_TEXT_NBYTES:
            raise OSError(errno.EFBIG, f"it holds more than {MOST_TEXT_NBYTES} bytes")
        return file.read(MOST_TEXT_NBYTES).decode()


def write_files(files: Mapping[Path, Content]) -> None:
    """Write ``files`` (path -> content), all or none, and create their folders. Raises ``JobError``.

    The files get temporary names and are renamed after the last one is on the disk; then the folders are
    synced, too. A machine that loses power therefore keeps either the old files or the new ones.
    """
    temporary: dict[Path, Path] = {}
    place = Path()
    try:
        for path, content in files.items():
            place = path.parent
            place.mkdir(parents=True, exist_ok=True)
            temporary[path] = _write_beside(path, content, sync=True)
        for path, part in temporary.items():
            place = path.parent
            os.replace(part, path)
        for place in dict.fromkeys(path.parent for path in files):
            _sync_folder(place)
    except OSError as error:
        raise JobError(f"the results cannot be written to {place}: {error.strerror or error}") from error
    finally:
        for part in temporary.values():
            with suppress(OSError):
                part.unlink()


def replace_file(path: Path, content: Content) -> None:
    """Replace one file in an existing folder, without waiting for the disk. Raises ``OSError``.

    Readers see the old content or the new one.
    """
    part = _write_beside(path, content, sync=False)
    try:
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _write_beside(path: Path, content: Content, *, sync: bool) -> Path:
    """Write a new file with a random name into the folder of ``path`` and return its path.

    Another host of a shared file system, or another thread, never has the same name, and whatever else has it
    (a link to another file, say) is an error, not a place to write to.
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
    """Make the names in a folder survive a loss of power, if its file system can."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems sync no folders
            os.fsync(opened)
    finally:
        os.close(opened)


def check_writable(option: str, path: Path, overwrite: bool) -> None:
    """Raise ``JobError``, which names the option, unless the file ``path`` can be written; leave no trace.

    A file that exists is an older result, which took somebody time: only ``overwrite`` allows to replace it.
    """
    place = path.parent
    try:
        if path.is_dir():
            raise JobError(f"{option} {path} is a folder; name a file")
        if place.resolve() == _DEVICES or (path.exists() and not path.is_file()):
            raise JobError(f"{option} {path} is no ordinary file, and results would replace it; name another")
    except OSError as error:
        raise _refused(option, path, place, "file", error) from error
    _try_folder(option, path, place, "file")
    if path.exists() and not overwrite:
        raise JobError(f"{option} {path} exists already; name another file, or say --overwrite")


def check_replaceable(path: Path, overwrite: bool, read: Callable[[Path], object]) -> None:
    """Raise ``OSError`` where a file must not replace what is at ``path``.

    Without ``overwrite`` it replaces only what ``read`` reads, which raises ``SpecError`` for all else.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not path.is_file():
        raise OSError(errno.EEXIST, "it is no ordinary file")
    if not overwrite and path.exists() and path.stat().st_size > 0:
        try:
            read(path)
        except SpecError as error:
            found = "it holds something else; name another file, or pass overwrite=True"
            raise OSError(errno.EEXIST, found) from error


def check_folder_new(option: str, folder: Path, names: Sequence[str], overwrite: bool) -> None:
    """Raise ``JobError``, which names the option, if ``folder`` holds an older result of these names."""
    older = [name for name in names if (folder / name).exists()]
    if older and not overwrite:
        raise JobError(
            f"{option} {folder} holds an older result ({' and '.join(older)}); name another folder, or say "
            "--overwrite"
        )


def check_folder_writable(option: str, folder: Path) -> None:
    """Raise ``JobError``, naming the option, unless files can be created in ``folder``; leave no trace."""
    _try_folder(option, folder, folder, "folder")


def _try_folder(option: str, path: Path, place: Path, kind: str) -> None:
    """Create and remove something in the nearest existing parent folder."""
    try:
        while not (place.is_symlink() or place.exists()) and place != place.parent:
            place = place.parent
        with tempfile.TemporaryDirectory(prefix=".gradwire-", dir=place):
            pass
    except OSError as error:
        raise _refused(option, path, place, kind, error) from error


def _refused(option: str, path: Path, place: Path, kind: str, error: OSError) -> JobError:
    reason = error.strerror or error
    return JobError(f"{option} {path} cannot be written: {place}: {reason}; name another {kind}")

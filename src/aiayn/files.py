"""Files are whole, or they are not there.

What is to be at a path is written under a temporary name beside it, `.NAME.HOST.PID.partial`, which says whose it is: a
command that is killed leaves it behind, and the next one that writes there removes it.
"""

import hashlib
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL
from functools import cache
from itertools import count
from pathlib import Path
from typing import TextIO


def absolute(path: str | Path) -> Path:
    """A path that a user gave, from the root; `~` means home.

    Raises:
        ValueError: if there is no such home.
    """
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise ValueError(f"{path} begins with ~, but there is no such home; give the whole path.") from error


def digest(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal; a file that has not changed is read once by a process.

    Raises:
        OSError: if it cannot be read, or is a device or a pipe, which may have no end.
    """
    if not path.is_file() and path.exists():
        raise OSError(EINVAL, "It is not a regular file", str(path))
    stat = path.stat()
    return _digest(path, stat.st_size, stat.st_mtime_ns)


@cache
def _digest(path: Path, size: int, modified: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def new_folder(path: Path) -> Path:
    """Make a folder of that name, with `-2`, `-3`, ... behind it where there is one; so two commands never share it.

    Raises:
        OSError: if it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        place = path if number == 1 else path.with_name(f"{path.name}-{number}")
        with suppress(FileExistsError):
            place.mkdir()
            break
    return place


@contextmanager
def whole(path: Path) -> Iterator[TextIO]:
    """Open a file under a temporary name beside its place; it is renamed when the block ends without an error.

    So a reader never sees half of it. Lines end in a line feed on every system.

    Raises:
        OSError: if it cannot be written; an older file of that name is then untouched.
    """
    with replacing(path) as place, place.open("w", encoding="utf-8", newline="\n") as file:
        yield file


def write_text(path: Path, text: str) -> None:
    """Write a file as `whole` does.

    Raises:
        OSError: if it cannot be written; an older file of that name is then untouched.
    """
    with whole(path) as file:
        file.write(text)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file that is no text, a picture for one, as `whole` does.

    Raises:
        OSError: if it cannot be written; an older file of that name is then untouched.
    """
    with replacing(path) as place:
        place.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what is to be at a path: a name beside it, which becomes the path's own unless the block fails.

    Raises:
        OSError: if it cannot be written; an older file of that name is then untouched.
    """
    if path.exists() and not path.is_file():  # a device or a pipe cannot be replaced; a folder is refused by the system
        with _named(path):
            yield path
        return
    path = path.resolve()  # a link stays a link
    temporary = _beside(path)
    try:
        with _named(path):
            yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Give an error of writing, which a full disk makes without one, the name of the file."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A new folder to write in, which gets its name when the block ends without an error.

    Raises:
        ValueError: if something has that name: a folder with everything in it is never replaced.
    """
    path = path.resolve()
    if path.exists():
        raise ValueError(f"{path} exists, and a folder is never overwritten; name another output, or remove it.")
    temporary = _beside(path)
    try:
        temporary.mkdir()
        yield temporary
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_leftovers(folder: Path, *, of_every_host: bool = False) -> None:
    """Remove the files and folders that killed commands left half-written in a folder.

    Args:
        folder: Where to look; not in folders below it.
        of_every_host: Whether no other process writes here, so that everything half-written was left. Else only what
            is of this host and of a process that has ended; the processes of other hosts cannot be seen from here.
    """
    for left in folder.glob(".*.partial"):
        owner = re.fullmatch(r"\..+\.([^.]+)\.(\d{1,9})\.partial", left.name)
        if owner and (of_every_host or (owner[1] == _host() and not _is_running(int(owner[2])))):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                with suppress(OSError):  # gone, or not ours to remove; what follows says it if it matters
                    left.unlink()


def _beside(path: Path) -> Path:
    """A name for what is to be at a path, with nothing there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    temporary = path.with_name(f".{path.name}.{_host()}.{os.getpid()}.partial")
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that had this one's number, as in containers
    return temporary


def _host() -> str:
    return socket.gethostname().replace(".", "-") or "localhost"


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True

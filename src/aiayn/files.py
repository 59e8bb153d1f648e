"""Files are whole, or they are not there."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


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
        yield path
        return
    path = path.resolve()  # a link stays a link
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A new folder to write in, which gets its name when the block ends without an error.

    Raises:
        ValueError: if something has that name: a folder with everything in it is never replaced.
    """
    path = path.resolve()
    if path.exists():
        raise ValueError(f"{path} exists, and a folder is never overwritten; name another output, or remove it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.mkdir()
        yield temporary
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

"""Files are whole, or they are not there."""

import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write a file under a temporary name beside its place and rename it, so that a reader never sees half of it.

    Raises:
        OSError: if it cannot be written; an older file of that name is then untouched.
    """
    path = path.resolve()  # a link stays a link
    if path.exists() and not path.is_file():  # a device or a pipe cannot be replaced; a folder is refused by the system
        path.write_text(text, encoding="utf-8", newline="\n")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)

"""Files of `torch.save`, opened as a stranger's: whole, undamaged, plain data, and no larger in memory than on disk.

Such a file is a zip archive: `data.pkl`, which says what there is, and a part for each tensor's numbers. torch.load
with mmap reads the parts without their checksums, and unpacks what is packed.
"""

import errno
import pickletools
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# What a pickle may call even with `weights_only=True`, and what makes much of little: `bytearray(10**11)`.
GREEDY = re.compile(
    r"(__builtin__|builtins) bytearray|_codecs encode|torch[.\w]* (\w*Tensor|UntypedStorage|TypedStorage)"
)


def load(path: Path) -> Any:
    """The content of a file of `torch.save`, on the CPU; numbers stay on the disk until they are used.

    Raises:
        OSError: if it cannot be read, with the system's reason.
        ValueError: if it is damaged, cut short, packed, or no such file.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            _check(archive, size=path.stat().st_size)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except MemoryError as error:
        raise OSError(errno.ENOMEM, "there is not enough memory to open it", str(path)) from error
    except OSError as error:
        raise OSError(f"checkpoint {path} cannot be read: {error.strerror or line(error)}.") from error
    except zipfile.BadZipFile as error:
        raise ValueError(f"checkpoint {path} is cut short, damaged, or not a checkpoint of aiayn: {error}.") from error
    except Exception as error:  # a pickle can be written so that reading it raises anything
        reason = line(error).partition(" (1) ")[0]  # torch goes on with advice to trust the file
        raise ValueError(f"checkpoint {path} cannot be read: {reason}.") from error


def _check(archive: zipfile.ZipFile, *, size: int) -> None:
    """Refuse an archive that is damaged, or could take more memory than its `size` in bytes."""
    parts = archive.infolist()
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts) or sum(part.file_size for part in parts) > size:
        raise ValueError("it is packed, and aiayn writes no packed checkpoints")
    if (damaged := archive.testzip()) is not None:
        raise ValueError(f"it is damaged: its part {damaged} has not the checksum that it was written with")
    for part in parts:
        if part.filename.endswith("/data.pkl"):
            calls = {str(name) for code, name, _ in pickletools.genops(archive.read(part)) if "GLOBAL" in code.name}
            if greedy := sorted(filter(GREEDY.fullmatch, calls)):
                raise ValueError(f"it is no plain data: it calls {greedy[0]}")


def plain_tensors(weights: Any, *, size: int) -> bool:
    """Whether these are named tensors with numbers on the CPU, of no more bytes together than `size`, the file's."""
    if not isinstance(weights, dict):
        return False
    plain = all(
        isinstance(name, str)
        and isinstance(value, Tensor)
        and (value.layout, value.device.type) == (torch.strided, "cpu")
        for name, value in weights.items()
    )
    return plain and sum(value.numel() * value.element_size() for value in weights.values()) <= size


def line(error: BaseException) -> str:
    """What an error says, in one line that is not too long."""
    return " ".join(str(error).split())[:300] or type(error).__name__

"""Files are whole or not there, whatever they hold."""

import resource
import signal
from pathlib import Path

import pytest

from aiayn.files import whole, write_bytes, write_text

LIMIT = 1009  # bytes


@pytest.fixture
def little_space():
    """No file of this process can grow beyond `LIMIT`, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, before[0][1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before[0])
    signal.signal(signal.SIGXFSZ, before[1])


@pytest.mark.parametrize(("write", "content"), [(write_text, "a\n\u00e4"), (write_bytes, b"\r\n\xff")])
def test_what_is_written_is_there_also_through_a_link(tmp_path: Path, write, content):
    path, link = tmp_path / "new" / "x", tmp_path / "link"
    write(path, content)
    link.symlink_to(path)
    write(link, content * 2)
    assert link.is_symlink()
    assert path.read_bytes() == (content * 2 if isinstance(content, bytes) else (content * 2).encode())
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(("write", "content"), [(write_text, "a" * 2 * LIMIT), (write_bytes, b"a" * 2 * LIMIT)])
def test_without_space_an_older_file_is_untouched(tmp_path: Path, little_space, write, content):
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(OSError, match="too large"):
        write(path, content)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_fails_leaves_nothing(tmp_path: Path):
    def half():
        with whole(tmp_path / "x") as file:
            file.write("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("write", "content"), [(write_text, "x"), (write_bytes, b"x")])
def test_a_device_is_written_and_not_replaced(write, content):
    write(Path("/dev/null"), content)
    assert Path("/dev/null").is_char_device()

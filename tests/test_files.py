"""Files are whole or not there, whatever they hold."""

import hashlib
import os
import re
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aiayn.files import digest, remove_leftovers, whole, whole_folder, write_bytes, write_text

LIMIT = 1009  # bytes


@contextmanager
def little_space() -> Iterator[None]:
    """No file of this process can grow beyond `LIMIT`, as on a full disk; nor can what pytest prints to."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, before[0][1]))
    try:
        yield
    finally:
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
def test_without_space_an_older_file_is_untouched(tmp_path: Path, write, content):
    path = tmp_path / "x"
    path.write_text("old")
    with little_space(), pytest.raises(OSError, match="too large"):
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


@contextmanager
def writing(block) -> Iterator[int]:
    """A process that is in the middle of writing, by its number; it is killed at the end."""
    begun, tell = os.pipe()
    child = os.fork()
    if not child:
        with block:
            os.write(tell, b".")
            signal.pause()
    os.read(begun, 1)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(begun)
        os.close(tell)


@pytest.mark.parametrize("block", [whole, whole_folder])
def test_what_a_killed_command_left_is_removed_by_the_next_that_writes_there(tmp_path: Path, block):
    with writing(block(tmp_path / "x.y")):
        write_text(tmp_path / "z", "a command that is alive is left alone")
        assert len(list(tmp_path.iterdir())) == 2
    write_text(tmp_path / "z", "")
    assert list(tmp_path.iterdir()) == [tmp_path / "z"]
    with writing(block(tmp_path / "x.y")):
        pass
    with whole_folder(tmp_path / "v"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"v", "z"}


def test_what_another_host_writes_is_removed_only_where_nobody_else_can_write(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "node7.cluster")
    with writing(whole(tmp_path / "x")):
        pass
    monkeypatch.setattr(socket, "gethostname", lambda: "node11.cluster")
    ours = [tmp_path / name for name in (".z", ".x.partial", ".x.1.partial", "x.node11-cluster.999999999.partial")]
    for path in ours:
        path.touch()
    write_text(tmp_path / "y", "")
    assert len(list(tmp_path.iterdir())) == 6
    remove_leftovers(tmp_path, of_every_host=True)
    assert set(tmp_path.iterdir()) == {*ours, tmp_path / "y"}


def test_a_folder_left_by_a_process_of_the_same_number_is_not_in_the_way(tmp_path: Path):
    with writing(whole_folder(tmp_path / "x")) as number:
        pass
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: number)
        with whole_folder(tmp_path / "x") as folder:
            (folder / "a").touch()
    assert list(tmp_path.rglob("*")) == [tmp_path / "x", tmp_path / "x" / "a"]


def test_what_may_have_no_end_has_no_digest(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("eleven")
    assert digest(tmp_path / "a") == hashlib.sha256(b"eleven").hexdigest()
    for place in (Path(os.devnull), tmp_path):
        with pytest.raises(OSError, match=re.escape(str(place))):
            digest(place)

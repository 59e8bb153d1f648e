"""Where the service listens, and for whom; tests/commands/test_serve.py has the server at work."""

import asyncio
import re
import socket
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from aiayn.serving import server
from aiayn.serving.server import Connection, Server, is_local, listen


@pytest.mark.parametrize("host", ["", None, 1, True])
def test_no_host_is_not_every_network(host: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"host must be a name or an address, got {host!r}; 0.0.0.0 is")):
        listen(host, 0)


@pytest.mark.parametrize("port", [True, False, None, "80", 1.5, -1, 2**16])
def test_what_is_no_port_is_refused(port: Any) -> None:
    with pytest.raises(ValueError, match="port must be a whole number from 0"):
        listen("127.0.0.1", port)


def test_an_address_of_another_machine_is_none_to_listen_at() -> None:
    with pytest.raises(OSError, match=r"cannot listen at 192\.0\.2\.1, port 0: .*; choose another host= or port="):
        listen("192.0.2.1", 0)


@pytest.mark.parametrize(("host", "local"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)])
def test_an_address_is_of_this_machine_alone_or_of_a_network(host: str, local: bool) -> None:
    with listen(host, 0) as listening:
        assert is_local(listening) is local


REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LIMIT = 1000  # seconds; no machine is so slow that they go by on their own


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time can be moved on."""

    moved = 0.0

    def time(self) -> float:
        return super().time() + self.moved

    async def move(self, seconds: float) -> None:
        self.moved += seconds
        await asyncio.sleep(0.001)  # what is due comes first


@pytest.mark.parametrize("begun", [b"", REQUEST, REQUEST * 2], ids=["none", "one", "two"])
@pytest.mark.parametrize("part", [b"", b"G", REQUEST[:-2]])
def test_a_connection_is_closed_unless_a_whole_request_comes_in_time(
    monkeypatch: pytest.MonkeyPatch, begun: bytes, part: bytes
) -> None:
    monkeypatch.setattr(server, "HEADERS", LIMIT)
    clock = Clock()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await clock.move(LIMIT * 1.5)  # longer than a connection may be idle
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def play() -> bytes:
        config = uvicorn.Config(app, http=Connection, ws="none", lifespan="off", timeout_keep_alive=LIMIT)
        make = partial(Connection, config=config, server_state=ServerState(), app_state={})
        theirs, ours = socket.socketpair()
        _, connection = await clock.connect_accepted_socket(make, theirs)
        reader, writer = await asyncio.open_connection(sock=ours)
        writer.write(begun)
        answers = b"".join([await reader.readuntil(b"\r\n\r\n") for _ in range(begun.count(REQUEST))])
        await clock.move(LIMIT * 0.7)
        if part:
            connection.data_received(part)
        assert not connection.transport.is_closing()
        await clock.move(LIMIT * 0.7)
        answers += await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return answers

    with asyncio.Runner(loop_factory=lambda: clock) as runner:
        assert runner.run(play()).count(b"204 No Content") == begun.count(REQUEST)


def test_connections_above_the_bound_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTIONS", 3)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def play() -> list[bytes]:
        config = uvicorn.Config(app, http=Connection, ws="none", lifespan="off")
        make = partial(Connection, config=config, server_state=ServerState(), app_state={})
        async with await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0) as listening:
            pairs = [await asyncio.open_connection(*listening.sockets[0].getsockname()) for _ in range(5)]
            closed = [await reader.read() for reader, _ in pairs[3:]]
            pairs[0][1].write(REQUEST)
            closed.append(await pairs[0][0].readuntil(b"\r\n\r\n"))
            for _, writer in pairs:
                writer.close()
            return closed

    first, second, answered = asyncio.run(asyncio.wait_for(play(), 5))
    assert (first, second) == (b"", b"")
    assert b"204" in answered


def test_told_to_end_it_answers_also_connections_that_wait_in_line() -> None:
    class Stopping:
        """A service that has answers only while it ends."""

        def __init__(self) -> None:
            self.batcher = SimpleNamespace(stop=asyncio.Event().set)

        def app(self) -> Any:
            async def app(scope: Any, receive: Any, send: Any) -> None:
                if scope["type"] == "http":
                    await send({"type": "http.response.start", "status": 503, "headers": [(b"connection", b"close")]})
                    await send({"type": "http.response.body"})

            return app

    async def play(listening: socket.socket) -> list[bytes]:
        address = listening.getsockname()
        pairs = [await asyncio.open_connection(*address) for _ in range(17)]
        *early, late = pairs
        for _, writer in early:
            writer.write(REQUEST)
        ending = Server(Stopping())  # type: ignore[arg-type]
        ending.should_exit = True  # told before it could take one of them
        serving = asyncio.create_task(ending._serve([listening]))
        answers = [await reader.read() for reader, _ in early]
        late[1].write(REQUEST)
        answers.append(await late[0].read())
        await serving
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        for _, writer in pairs:
            writer.close()
        return answers

    with listen("127.0.0.1", 0) as listening:
        listening.listen(server.WAITING)
        answers = asyncio.run(asyncio.wait_for(play(listening), 30))
    assert [answer.partition(b"\r\n")[0] for answer in answers] == [b"HTTP/1.1 503 Service Unavailable"] * 17

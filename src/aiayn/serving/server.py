"""The server that runs the service: Uvicorn's, with an end that comes when it is told to, and bounds on connections.

More connections than half of the files that the process may open are closed unanswered, and one on which no request
begins in time is closed, also if a part of its headers has come. So a client that opens many cannot stop the process,
and can keep others out only as long as it goes on. Whoever serves a network with such clients puts a proxy in front.
"""

import asyncio
import os
import resource
import select
import signal
import socket
from ipaddress import ip_address
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from aiayn.serving.service import Service

# Seconds that an idle connection stays open. Clients give theirs up earlier (httpx after 5), so that none asks on a
# connection that the service closes in that moment.
KEEP_ALIVE = 65
HEADERS = 10  # seconds in which the headers of a connection's first request have to come
ENDING = 10  # seconds that requests have when the service is told to end
COMING = 2  # seconds of these in which a request may come on a connection that is there
WAITING = 1024  # connections that the system may hold until they are taken
FILES, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
CONNECTIONS = 4096 if FILES == resource.RLIM_INFINITY else min(4096, FILES // 2)


class Connection(H11Protocol):
    """A connection that is idle until the headers of a request are whole; to Uvicorn, until their first byte."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(HEADERS, self.timeout_keep_alive_handler)
        if len(self.connections) > CONNECTIONS:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        idle = self.timeout_keep_alive_task
        super().data_received(data)
        if idle and (self.cycle is None or self.cycle.response_complete):  # no request has begun
            self.timeout_keep_alive_task = self.loop.call_at(idle.when(), self.timeout_keep_alive_handler)


class Server(uvicorn.Server):
    """Uvicorn's server; it waits for running requests when it ends, so those that wait for the model must be told."""

    def __init__(self, service: Service) -> None:
        config = uvicorn.Config(
            service.app(),
            http=Connection,
            ws="none",
            log_config=None,  # its messages go where ours go
            log_level="error",  # what clients do wrong is told to them
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE,
            # asyncio takes so many connections at a time, and when no more files may be opened logs each that it
            # cannot take, all of them again every second. One by one, those over the limit are closed before that.
            backlog=1,
        )
        super().__init__(config)
        self.service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take connections; those that come at once wait in line."""
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(WAITING)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse what waits and what still comes, finish what runs; connections that need longer are closed."""
        self.service.batcher.stop()
        loop = asyncio.get_running_loop()
        loop.call_later(ENDING, self._close)
        for listening in sockets or []:
            await self._take_waiting(listening)
        for server in self.servers:
            server.close()
        limit = loop.time() + COMING
        while self.server_state.connections and loop.time() < limit:
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)

    async def _take_waiting(self, listening: socket.socket) -> None:
        """Take the connections that wait in line, which the system would reset; not also all that still come."""
        waits = select.poll()
        waits.register(listening, select.POLLIN)
        for _ in range(WAITING + 1):
            if not waits.poll(0):
                break
            await asyncio.sleep(0)  # the event loop takes one
        await asyncio.sleep(0.05)  # it has told the connections of themselves by then

    def _close(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal ends the service in good order, the second one at once."""
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True


def run(service: Service, listening: socket.socket) -> None:
    """Answer requests until SIGINT (Ctrl-C) or SIGTERM.

    Args:
        service: Does the work.
        listening: As `listen` gives it.
    """
    server = Server(service)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, server.handle_exit)  # also before Uvicorn's server runs, and while the process ends
    server.run(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections; they wait until a server answers.

    Raises:
        ValueError: if `host` is no name or address, or `port` no port.
        OSError: if another process has the port, or the host is not this machine.
    """
    if not isinstance(host, str) or not host:  # the system takes an empty one for every network
        raise ValueError(f"host must be a name or an address, got {host!r}; 0.0.0.0 is every network.")
    if type(port) is not int or not 0 <= port < 2**16:  # True is an int, too
        raise ValueError(f"port must be a whole number from 0 (any free one) to {2**16 - 1}, got {port}.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise OSError(f"cannot listen at {host}, port {port}: {reason}; choose another host= or port=.") from error


def is_local(listening: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ip_address(listening.getsockname()[0]).is_loopback

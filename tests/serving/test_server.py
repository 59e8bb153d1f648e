"""Where the service listens, and for whom; tests/applications/test_serve.py has the server at work."""

import re
from typing import Any

import pytest

from aiayn.serving.server import is_local, listen


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

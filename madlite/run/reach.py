"""Whether something listens where data is to come from, and for `ssh://` whether it is an SSH server."""

from __future__ import annotations

import socket
from functools import cache
from urllib.parse import urlsplit

LIMIT_S = 30.0  # as madengine has it
_PORTS = {"https": 443, "ssh": 22}


@cache
def why_unreachable(endpoint: str) -> str:
    """Return why nobody answers at an address such as `http://host:9000`, or nothing; asked once per address.

    An SSH server speaks first (RFC 4253, 4.2): that it does is all that is asked of one.
    """
    name = endpoint.rpartition("@")[2]  # a user's name and password are nobody's business
    try:
        parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
        name = parts.hostname or name
        port = parts.port or _PORTS.get(parts.scheme, 80)
        with socket.create_connection((parts.hostname or "", port), timeout=LIMIT_S) as connected:
            if parts.scheme == "ssh" and not connected.recv(255).startswith(b"SSH-"):
                return f"{name} answers at port {port}, but not as an SSH server"
            return ""
    except (OSError, ValueError) as error:
        return f"{name} cannot be reached: {getattr(error, 'strerror', None) or error}"

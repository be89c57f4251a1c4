"""Whether something listens where data is to come from."""

from __future__ import annotations

import socket
from functools import cache
from urllib.parse import urlsplit

LIMIT_S = 30.0  # as madengine has it


@cache
def why_unreachable(endpoint: str) -> str:
    """Return why nobody answers at an address such as `http://host:9000`, or nothing; asked once per address."""
    name = endpoint.rpartition("@")[2]  # a user's name and password are nobody's business
    try:
        parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
        name = parts.hostname or name
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((parts.hostname or "", port), timeout=LIMIT_S):
            return ""
    except (OSError, ValueError) as error:
        return f"{name} cannot be reached: {getattr(error, 'strerror', None) or error}"

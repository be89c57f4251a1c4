"""Whether something listens where data is to come from."""

from __future__ import annotations

import socket
from functools import cache
from urllib.parse import urlsplit

LIMIT_S = 30.0  # as madengine has it


@cache
def why_unreachable(endpoint: str) -> str:
    """Return why nobody answers at an address such as `http://host:9000`, or nothing; asked once per address."""
    parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((parts.hostname or "", port), timeout=LIMIT_S):
            return ""
    except (OSError, ValueError) as error:
        return f"{parts.hostname or endpoint} cannot be reached: {getattr(error, 'strerror', None) or error}"

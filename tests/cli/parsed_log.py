"""What `madlite parse` says of a log."""

from __future__ import annotations

import json
from typing import Any

from madlite.cli.main import call


def parsed(capsys, *args: object, code: int = 0) -> dict[str, Any]:
    """Return the command's JSON; it ends with `code`."""
    assert call(["parse", *map(str, args), "--json"]) == code
    return json.loads(capsys.readouterr().out)

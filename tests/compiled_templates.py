"""Templates are compiled once for all workers and commands of the tests: it is half of what planning a run costs.

madlite keeps them for one working folder, and a test has one of its own.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import jinja2
from jinja2.bccache import Bucket

folder = ""  # in which this process keeps them


class _Kept(jinja2.FileSystemBytecodeCache):
    """A folder of compiled templates, each by its path and text."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError):  # a test may be another user's
            super().dump_bytecode(bucket)


def keep_in(place: Path) -> None:
    """Keep what is compiled from now on in a folder, and take what lies there."""
    global folder  # noqa: PLW0603 - of the process, as the patch is
    place.mkdir(exist_ok=True)
    folder = str(place)
    kept, real = _Kept(folder), jinja2.Environment.__init__

    def init(self: jinja2.Environment, *args: Any, **options: Any) -> None:
        real(self, *args, **{"bytecode_cache": kept, **options})

    jinja2.Environment.__init__ = init  # type: ignore[method-assign]

"""The manifest of a run: the one it starts from instead of tags, and the one it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from madlite.cli import setup
from madlite.errors import UsageProblem
from madlite.plan.options import Options

if TYPE_CHECKING:
    from madlite.engine.screen import Planned
    from madlite.plan.manifest import Manifest
    from madlite.types import Result


def find_manifest(given: dict[str, Any], options: Options) -> Manifest | None:
    """Return the manifest to run from; None where tags are to be built and run.

    As in madengine 2, a file that is not there is no reason not to run the tags that are given too.

    Raises:
        MadliteError: the file is no manifest, or there is neither a file nor a tag.
    """
    file = given.get("manifest_file")
    if file is None:
        return None
    if not file.exists():
        if not given["tags"]:
            raise UsageProblem(f"there is no manifest {file}", "madlite build --tags NAME writes one")
        setup.warn(f"there is no manifest {file}: the tags are built and run")
        return None
    if given["tags"]:
        setup.warn(f"--tags has no effect: {file} names the models")
    from madlite.plan.manifest import read_manifest

    return read_manifest(file, options.workspace)


def save_manifest(
    planned: Sequence[Planned], results: Sequence[Result], options: Options, given: dict[str, Any]
) -> str:
    """Write the manifest of what a batch of runs from tags built; return what kept it from being written.

    `results` are those of the first of the planned.  A run from a manifest leaves that one as it is.
    """
    from madlite.engine.manifest_file import manifest_of_runs, write_file
    from madlite.engine.one import secrets_for

    file = options.workspace / given["manifest_output"]
    secrets = [text for one in planned for text in secrets_for(one.plan, options.environ)]
    try:
        write_file(file, manifest_of_runs(planned, results, setup.given_context(given), secrets))
    except OSError as error:
        return f"no {file.name}: {error.strerror}"
    return ""

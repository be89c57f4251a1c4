"""The manifest of a run: the one it starts from instead of tags, and the one it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from madlite.cli import setup
from madlite.errors import MadliteError, UsageProblem
from madlite.files import exists, is_file
from madlite.plan.options import Options

if TYPE_CHECKING:
    from madlite.model import Result
    from madlite.plan.manifest import Manifest
    from madlite.run.screen import Planned


def find_manifest(given: dict[str, Any], options: Options) -> Manifest | None:
    """Return the manifest to run from; None where tags are to be built and run.

    As in madengine 2, a file that is not there is no reason not to run the tags that are given too.

    Raises:
        MadliteError: the file is no manifest, or there is neither a file nor a tag.
    """
    file = given.get("manifest_file")
    if file is None:
        return None
    if not exists(file):
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

    `results` are those of the first of the planned.  A run from a manifest leaves that one as it is, and runs that had
    no image (on the host, not started, not built) leave one that names images.
    """
    from madlite.results.named_file import write_named
    from madlite.run.manifest_file import builds_of, manifest_of_runs
    from madlite.run.one import secrets_for

    file = options.workspace / given["manifest_output"]
    secrets = [text for one in planned for text in secrets_for(one, options.environ)]
    if not builds_of(planned, results)[0] and _names_images(file, options):
        return ""
    text = manifest_of_runs(planned, results, setup.given_context(given), secrets)
    try:
        write_named(file, text, is_manifest)
    except UsageProblem as problem:
        return problem.message
    return ""


def _names_images(file: Path, options: Options) -> bool:
    found = _read(file, options.workspace)
    return found is not None and bool(found.images)


def is_manifest(file: Path) -> bool:
    """Say whether a path leads to a manifest."""
    return _read(file, Path.cwd()) is not None


def _read(file: Path, workspace: Path) -> Manifest | None:
    from madlite.plan.manifest import read_manifest

    try:
        return read_manifest(file, workspace) if is_file(file) else None
    except MadliteError:
        return None

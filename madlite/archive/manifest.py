"""What is in an archive of runs: `manifest.json`, its first file.

Format: docs/archive.md.  It is read before anything is extracted, and nothing is extracted that it does not name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

import msgspec

from madlite.errors import UsageProblem
from madlite.model import RUN_ID, Value
from madlite.store.folder import HANDLE, LOCK, PROGRESS, RECORD, RESULT
from madlite.store.journal import RUN_JOURNAL

FORMAT = 1
MANIFEST = "manifest.json"
LIMIT_BYTES = 64 << 20
MAX_FILES, MAX_RUNS = 200_000, 10_000  # of one archive
OF_ONE_FOLDER = frozenset((LOCK, HANDLE, PROGRESS, RUN_JOURNAL, RESULT))
"""Files of a run that mean something in the folder alone that madlite made them in."""
_NO_RUN = re.compile(r"(?:jobs|study|check|batch)-.*|baselines")  # what else has its place among the folders of runs
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LONGEST_NAME, _LONGEST_PATH, _DEEPEST = 255, 1000, 32  # bytes of a part, characters, parts


class PackedFile(Value, frozen=True):
    """A file of a run as the archive has it; `masked` where secrets were masked in it while it was packed, `masks`."""

    path: str
    bytes: int
    sha256: str
    masked: bool = False
    masks: int = 0


class LeftOut(Value, frozen=True):
    """A file of a run's folder, and why the archive does not have it; "" for one that it is to have."""

    path: str
    bytes: int
    why: str = ""


class PackedRun(Value, frozen=True):
    """A run of an archive.

    `first_id` is its id in the folder that it was made in, where it had been imported before it was packed.
    `left_out` names the first files that are not here, the counts are of all of them.
    """

    id: str
    card: str
    status: str
    first_id: str = ""
    started: str = ""
    files: tuple[PackedFile, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    left_out_files: int = 0
    left_out_bytes: int = 0

    @property
    def bytes(self) -> int:
        """How large its files are together."""
        return sum(file.bytes for file in self.files)


class Manifest(Value, frozen=True):
    """The content of an archive; `format` is incremented when the meaning of a field changes."""

    format: int
    madlite: str
    runs: tuple[PackedRun, ...] = ()

    def sizes(self) -> dict[str, PackedFile]:
        """Return the files by their names in the archive."""
        return {f"{run.id}/{file.path}": file for run in self.runs for file in run.files}


class _Versioned(Value, frozen=True):
    format: int = 0
    madlite: str = ""


def read_manifest(data: bytes, where: str) -> Manifest:
    """Return the manifest of an archive; messages call that `where`.

    Raises:
        UsageProblem: it is none, of another format, or names what no archive of runs has.
    """
    try:
        version = msgspec.json.decode(data, type=_Versioned)
        if version.format != FORMAT:
            raise UsageProblem(
                f"{where}: its {MANIFEST} is of format {version.format} (madlite {version.madlite or 'unknown'}), "
                f"and this madlite reads format {FORMAT}",
                "pip install --upgrade madlite",
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageProblem(f"{where}: its {MANIFEST} cannot be read: {error}", HINT) from None
    check_number(manifest, where)
    if problem := next(_problems(manifest), ""):
        raise UsageProblem(f"{where}: {problem}", HINT)
    return manifest


def check_number(manifest: Manifest, where: str) -> None:
    """Refuse more runs and files than one archive may have."""
    files = sum(len(run.files) for run in manifest.runs)
    for found, most, what in ((len(manifest.runs), MAX_RUNS, "runs"), (files, MAX_FILES, "files")):
        if found > most:
            raise UsageProblem(
                f"{where} has {found} {what}, more than {most} {what}", "pack fewer runs into one archive"
            )


HINT = "madlite archive writes archives of runs; nothing was taken in"


def is_run_id(name: str) -> bool:
    """Return whether a folder of this name can be a run's: not where madlite keeps something else under such names."""
    return RUN_ID.fullmatch(name) is not None and _NO_RUN.fullmatch(name) is None


def _problems(manifest: Manifest) -> Iterator[str]:
    """Yield what is wrong with the names of a manifest: they become paths."""
    if len({run.id for run in manifest.runs}) < len(manifest.runs):
        yield "a run is named twice"
    for run in manifest.runs:
        for name in filter(None, (run.id, run.first_id)):
            if not is_run_id(name):
                yield f"{name[:_LONGEST_NAME]!r} is no id of a run"
        yield from _problems_of_files(run)


def _problems_of_files(run: PackedRun) -> Iterator[str]:
    paths = {file.path for file in run.files}
    if len(paths) < len(run.files):
        yield f"a file of run {run.id} is named twice"
    if RECORD not in paths:
        yield f"run {run.id} has no {RECORD}"
    for file in run.files:
        if why := why_not_a_name(file.path):
            yield f"the file {file.path[:_LONGEST_NAME]!r} of run {run.id} {why}"
        if file.bytes < 0 or not _SHA256.fullmatch(file.sha256):
            yield f"size or SHA-256 of {file.path!r} of run {run.id} is none"


def why_not_a_name(path: str) -> str:
    """Return, as the end of a sentence, why a path is no file's of a run in an archive; "" where it may be one."""
    parts = path.split("/")
    if not path.isprintable() or "\\" in path or any(0xD800 <= ord(char) <= 0xDFFF for char in path):
        return "has characters that no file of an archive has"
    if any(part in ("", ".", "..") for part in parts):
        return "is outside of its folder"
    if parts[0] in OF_ONE_FOLDER or parts[0].startswith("."):
        return "has a name that is not taken in"
    too_long = len(path) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in parts)
    return "has too long a name" if too_long or len(PurePosixPath(path).parts) > _DEEPEST else ""

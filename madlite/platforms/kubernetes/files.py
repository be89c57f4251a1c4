"""What a run's pods get of the working folder, in its ConfigMap or by a volume: docs/kubernetes.md lists it."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from madlite.errors import RuntimeProblem
from madlite.model import Cause, RunPlan
from madlite.plan.cluster import KubernetesSettings
from madlite.plan.inputs import RUNS
from madlite.store.folder import WORK

_LOG = logging.getLogger(__name__)
MOST_BYTES = 1 << 20
"""What a ConfigMap or a Secret holds at most (k8s.io/api/core/v1, MaxSecretSize)."""
_OWN_BYTES = 1 << 16  # of a ConfigMap, which what madlite itself has there needs
_ARCHIVE_BYTES = 1 << 30  # of an archive
_MOST_FILES = 20_000
_SCANNED_BYTES = 1 << 18  # of a script at most: what is longer is data
_HINT = "put large files into the image or on a volume: k8s.volumes; one that has 'here' takes an archive of them"
# credentials and keys, the history, earlier runs and their results; of `id_…` the names that ssh-keygen gives
_PRIVATE = re.compile(
    rf"credential\.json|\.git|{RUNS}|__pycache__|\.env.*|cluster\.toml|\.netrc|\.ssh|\.kube|.*\.(pem|key)"
    r"|(.+\.)?kubeconfig(\.ya?ml)?|id_(rsa|dsa|ecdsa|ed25519)(_sk)?"
    r"|perf(_entry|_super|_entry_super)?\.(csv|json)|common_info\.json",
    re.IGNORECASE,
)
_IMPORTED = re.compile(rb"(?:\b(?:from|import)|\s-m)\s+([A-Za-z_]\w*)")  # the first part of a module's name
_WORDS = re.compile(rb"[\w./@%+-]{1,200}")


def check_size(sizes: Mapping[str, int], whose: str) -> None:
    """Refuse what is larger than a ConfigMap may be.

    Raises:
        RuntimeProblem: it is; the largest file is named.
    """
    if sum(sizes.values()) > MOST_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise RuntimeProblem(
            f"the files of {whose} are {sum(sizes.values()) / MOST_BYTES:.1f} MiB, and a ConfigMap holds 1 MiB "
            f"(the largest is {largest})",
            _HINT,
            cause=Cause.PREPARE,
        )


class Shipment(NamedTuple):
    """What goes along with a run: `files` by their paths in the workspace; `card` are those of the archive.

    `inside` is where pods see the archive, `here` where this machine does: "" and None where there is none.
    """

    files: dict[str, bytes]
    card: Mapping[str, Path] = {}
    inside: str = ""
    here: Path | None = None

    def deliver(self) -> None:
        """Write the archive to its volume; one of the same files that is there stays.

        Raises:
            RuntimeProblem: it cannot be written.
        """
        if self.here is None or self.here.exists():
            return
        part = self.here.with_name(f"{self.here.name}.{os.getpid()}")
        try:
            _pack(self.card, part)
            part.chmod(0o644)  # pods may see the volume as another user
            part.replace(self.here)
        except OSError as error:
            what = f"the card's files cannot be written to {self.here}: {error.strerror}"
            raise RuntimeProblem(what, "here of k8s.volumes is a folder of this machine", cause=Cause.PREPARE) from None
        finally:
            part.unlink(missing_ok=True)


def ship(plan: RunPlan, settings: KubernetesSettings, rendered: Mapping[str, bytes] | None = None) -> Shipment:
    """Return what a run's pods need of the working folder: the run's own files, the script's folder, what these name.

    `rendered` are the run's own files where its folder is not there yet, by their names in it.

    Raises:
        RuntimeProblem: a file cannot be read, a link leads out of the working folder, or it is too much.
    """
    home = plan.folder.relative_to(plan.workspace)
    work = plan.folder / WORK
    if rendered is None:
        rendered = {str(path.relative_to(work)): _read(path) for path in _below(work) if not path.is_symlink()}
    files = {f"{home}/{name}": data for name, data in rendered.items()}
    card = _of_card(plan, settings)
    room = MOST_BYTES - sum(map(len, files.values())) - _OWN_BYTES
    volume = next((volume for volume in settings.volumes if volume.here), None)
    if volume is None:
        check_size({name: _size(path) for name, path in card.items()}, plan.card.name)
    elif _total(card) > _ARCHIVE_BYTES:
        what = f"the files of {plan.card.name} are {_total(card) >> 20} MiB, and an archive of them holds 1 GiB"
        raise RuntimeProblem(what, _HINT, cause=Cause.PREPARE)
    card |= _named(plan, card, (room if volume is None else _ARCHIVE_BYTES) - _total(card))
    if volume is None or _total(card) <= room:
        return Shipment(files | {name: _read(path) for name, path in card.items()})
    try:
        state = repr([(name, path.stat().st_size, path.stat().st_mtime_ns) for name, path in sorted(card.items())])
    except OSError as error:  # one that was there just now
        raise RuntimeProblem(f"{error.filename} cannot be read: {error.strerror}", cause=Cause.PREPARE) from error
    name = f"madlite-{hashlib.sha256(state.encode()).hexdigest()[:32]}.tar"
    return Shipment(files, card, f"{volume.mount.rstrip('/')}/{name}", Path(volume.here) / name)


def _of_card(plan: RunPlan, settings: KubernetesSettings) -> dict[str, Path]:
    """Return the files without which a card does not run, by their paths in the workspace.

    Of a script that lies in the workspace itself it is the script alone: what else is there is not the run's.
    """
    found: dict[str, Path] = {}
    script = plan.workspace / plan.card.scripts
    script = script / "run.sh" if script.is_dir() else script
    wanted = []
    if plan.card.scripts and not plan.templates and script.exists():
        wanted = [script.parent if script.parent != plan.workspace else script]
    for path in (*wanted, *(plan.workspace / name for name in settings.include_script_dirs)):
        if ".." in path.parts or not path.is_relative_to(plan.workspace) or not path.exists():
            what = f"pods cannot have {path}: it is not there, or not in the working folder"
            raise RuntimeProblem(what, "copy it there; k8s.include_script_dirs", cause=Cause.PREPARE)
        found |= _inside(plan, path, path)
    for action in plan.actions:
        for word in action.argv:
            name = word.removeprefix(f"{plan.inside}/")
            if name != word and ".." not in name.split("/") and (plan.workspace / name).is_file():
                found[name] = plan.workspace / name
    return found


def _named(plan: RunPlan, files: Mapping[str, Path], room: int) -> dict[str, Path]:
    """Return what a card's scripts, arguments and variables name outside of their folder, and what that names in turn.

    What there is no room for is left out with a warning: it may be on a volume.
    """
    if not plan.card.scripts or plan.templates:
        return {}
    found: dict[str, Path] = {}
    words = [word for action in plan.actions for word in action.argv]
    words += [value for value in plan.env.values() if isinstance(value, str)]
    waiting = [(plan.folder, "\n".join(words).encode("utf-8", "replace")), *_texts(files)]
    while waiting:
        for path in _paths_in(plan, *waiting.pop()):
            name = str(path.relative_to(plan.workspace))
            try:
                new = {key: file for key, file in _inside(plan, path).items() if key not in {*files, *found}}
                if _total(new) > room:
                    text, hint = f"{name} is too large to go along", "k8s.volumes"
                    raise RuntimeProblem(text, hint)
            except RuntimeProblem as problem:
                _LOG.warning("pods do not have %s, which a script names: %s (%s)", name, problem.message, problem.hint)
                continue
            room -= _total(new)
            found |= new
            waiting += _texts(new)
    return found


def _texts(files: Mapping[str, Path]) -> Iterator[tuple[Path, bytes]]:
    """Yield the folder and the text of each file that may be a script."""
    for path in files.values():
        if _size(path) <= _SCANNED_BYTES and b"\0" not in (text := _read(path)):
            yield path.parent, text


def _paths_in(plan: RunPlan, folder: Path, text: bytes) -> Iterator[Path]:
    """Yield the paths of the workspace that a script may mean: the folder that it runs in lies in the workspace.

    A word without a folder counts only of a script that lies in the workspace itself.  A table there is a result.
    """
    found = []
    for word in {word.decode() for word in _WORDS.findall(text)}:
        _, outside, name = word.replace(f"{plan.inside}/", "../").rpartition("../")
        path = plan.workspace / name.lstrip("/")
        if (
            ".." not in path.parts
            and path != plan.workspace
            and (outside or (folder == plan.workspace and path.is_file()))
        ):
            found.append(path)
    for module in {module.decode() for module in _IMPORTED.findall(text)}:
        tops = [base / module for base in (folder, plan.workspace)]
        found += [path for top in tops for path in (top.with_suffix(".py"), top) if _is_code(path)]
    for path in sorted(set(found)):
        is_result = path.suffix == ".csv" and path.parent == plan.workspace
        if path.exists() and not is_result and not _is_private(path.relative_to(plan.workspace).parts):
            yield path


def _is_code(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and any(path.glob("*.py")))


def _inside(plan: RunPlan, path: Path, *more: Path) -> dict[str, Path]:
    """Return a file, or the files below a folder, by their paths in the workspace.

    Links are followed within it, and within the card's own folder and `more`, which may lie behind a link themselves.

    Raises:
        RuntimeProblem: a link leads out of it, or to nothing; a file cannot be read; there are too many.
    """
    top, found = plan.workspace / next(iter(Path(plan.card.scripts).parts), ""), {}
    homes = [home.resolve() for home in (plan.workspace, top, *more) if home.is_dir()]
    for file in _below(path) if path.is_dir() else [path]:
        name, real = str(file.relative_to(plan.workspace)), Path(os.path.realpath(file))
        home = next(filter(real.is_relative_to, homes), None)
        if home is None or not real.exists():
            what = f"{name} is a link out of the working folder, or to nothing"
            raise RuntimeProblem(what, "copy what it leads to, or put it on a volume: k8s.volumes", cause=Cause.PREPARE)
        if _is_private(real.relative_to(home).parts):
            continue
        if not os.access(file, os.R_OK):
            raise RuntimeProblem(f"{name} cannot be read", f"ls -l {name}", cause=Cause.PREPARE)
        found[name] = file
        if len(found) > _MOST_FILES:
            what = f"{path.relative_to(plan.workspace)} has more than {_MOST_FILES} files"
            raise RuntimeProblem(what, _HINT, cause=Cause.PREPARE)
    return found


def _below(folder: Path, parents: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield the files below a folder, and links to nothing; a link to a folder around it is left out."""
    try:
        paths = sorted(folder.iterdir()) if folder.is_dir() and folder.resolve() not in parents else []
    except OSError as error:
        raise RuntimeProblem(f"{folder} cannot be read: {error.strerror}", cause=Cause.PREPARE) from error
    for path in paths:
        if _is_private((path.name,)):
            continue
        if path.is_dir():
            yield from _below(path, (*parents, folder.resolve()))
        elif path.is_file() or path.is_symlink():
            yield path


def _is_private(parts: Iterable[str]) -> bool:
    """Return whether a path is of what no pod needs."""
    return any(map(_PRIVATE.fullmatch, parts))


def _pack(files: Mapping[str, Path], archive: Path) -> None:
    """Write files as a tar, of nobody's and with the rights that they have here."""
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, path in sorted(files.items()):
            item = tarfile.TarInfo(name)
            item.size, item.mode = path.stat().st_size, 0o755 if os.access(path, os.X_OK) else 0o644
            with path.open("rb") as file:
                tar.addfile(item, file)


def _total(files: Mapping[str, Path]) -> int:
    return sum(map(_size, files.values()))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RuntimeProblem(f"{path} cannot be read: {error.strerror}", cause=Cause.PREPARE) from error

"""Where fetched things lie, and what the environment reports about the hub.

Variables: https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from string import Template

import msgspec
from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.errors import one_hint
from madlite.files import Folder, NotJson, decode_json, read_plain
from madlite.model import Asset, Backend, EnvValue, Mount, RunPlan, Secret, Value
from madlite.text import size_text

TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MAD_SECRETS_HFTOKEN", "MAD_SECRETS_HF_TOKEN")
"""Variables that hand a Hugging Face token to a run."""
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
CACHES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
DATA = "MADLITE_DATA_DIR"
HUB = "https://huggingface.co"
_ON = ("1", "on", "yes", "true")  # as huggingface_hub reads them


class Token(Value, frozen=True):
    """A token of the hub and the variable, or file, it comes from."""

    value: Secret
    origin: str


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder in which huggingface_hub keeps repositories."""
    for name in CACHES:
        if environ.get(name):
            return _path(environ[name], environ)
    home = _path(environ["HF_HOME"], environ) if environ.get("HF_HOME") else _cache(environ) / "huggingface"
    return home / "hub"


def data_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of prepared data."""
    return _path(environ[DATA], environ) if environ.get(DATA) else _cache(environ) / "madlite/data"


def hub_endpoint(environ: Mapping[str, str]) -> str:
    """Return the address of the hub."""
    return (environ.get("HF_ENDPOINT", "").strip() or HUB).rstrip("/")


def is_offline(env: Mapping[str, EnvValue]) -> bool:
    """Return whether the environment forbids to ask the hub."""
    return any(is_on(env.get(name, "")) for name in OFFLINE)


def is_on(value: EnvValue) -> bool:
    """Return whether a switch of the hub's libraries is on."""
    return str(value).strip().lower() in _ON


def find_token(env: Mapping[str, EnvValue]) -> Token | None:
    """Return the hub's token of an environment."""
    for name in TOKENS:
        given = env.get(name, "")
        text = given.reveal() if isinstance(given, Secret) else given
        if text.strip():
            return Token(value=Secret(text.strip()), origin=name)
    return None


def stored_token() -> Token | None:
    """Return the token that `hf auth login` left on this machine."""
    from huggingface_hub import get_token

    text = (get_token() or "").strip()
    return Token(value=Secret(text), origin="hf auth login") if text else None


def _cache(environ: Mapping[str, str]) -> Path:
    folder = environ.get("XDG_CACHE_HOME")
    return _path(folder, environ) if folder else _home(environ) / ".cache"


def _path(text: str, environ: Mapping[str, str]) -> Path:
    """Return a folder as huggingface_hub reads it: `~` and `$NAME` mean what they mean to a shell."""
    path = Path(Template(text).safe_substitute(environ))
    if path.parts[:1] == ("~",):
        path = _home(environ).joinpath(*path.parts[1:])
    return Path(os.path.abspath(path))  # noqa: PTH100 - links stay as they are named


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


# A plan uses what `madlite prepare` brought: mounts and variables, so that the run fetches nothing.

ORIGIN = "madlite prepare"
HUB_INSIDE, DATA_INSIDE = "/madlite/hub", "/madlite/data"
_SHARED = "blobs"  # of the cache: what newer versions of huggingface_hub share between repositories
_SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")


def needed_assets(plan: RunPlan, backends: Iterable[Backend], plugins: Plugins) -> tuple[Asset, ...]:
    """Return the assets that a plan's backends require, each once."""
    own = replace(plan, env=given_env(plan))
    answers = (plugins.query(backend, "assets", own, otherwise=()) or () for backend in backends)
    return tuple(dict.fromkeys(asset for found in answers for asset in found))


def given_env(plan: RunPlan) -> dict[str, EnvValue]:
    """Return a plan's environment without what `madlite prepare` gave it."""
    return {name: text for name, text in plan.env.items() if plan.origins.get(f"env.{name}") != ORIGIN}


def settings(plan: RunPlan, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that configure access to a plan's hub: the plan's own over this environment."""
    return {**environ, **{name: str(value) for name, value in given_env(plan).items()}}


def use_prepared(plan: RunPlan, assets: Sequence[Asset], environ: Mapping[str, str]) -> RunPlan:
    """Return the plan with what of its assets is on this machine; unchanged where nothing is.

    The hub's repositories are used once all of them are here; the network is not used once everything is.
    """
    if plan.machine.pretended or not assets:
        return plan
    cache, data = hub_cache(cache_environ(plan, environ)), data_folder(environ)
    here = {asset: find_asset(asset, cache, data) for asset in assets}
    for name in dict.fromkeys(asset.env for asset in assets if asset.env and asset.env not in plan.env):
        places = {asset: here[asset] for asset in assets if asset.env == name}
        if all(places.values()):
            plan = _with_data(plan, name, places, data)
    hub = [asset for asset in assets if asset.source == "hub"]
    if not hub or _has_own(plan, environ):
        return plan
    if all(here[asset] for asset in hub):
        return _with_hub(plan, hub, cache, _missing(here, plan))
    plan = plan if plan.traits.containerised else _with_cached(plan, hub, here)
    return replace(plan, notes=(*plan.notes, _missing(here, plan))) if any(here.values()) else plan


def is_found(plan: RunPlan, asset: Asset) -> bool:
    """Say whether a plan's run finds a repository in the hub's cache, and so needs no token for it."""
    return plan.origins.get(_key(asset)) == ORIGIN


def _key(asset: Asset) -> str:
    return f"hub {repo_folder(asset, Path()).name}"


def _with_cached(plan: RunPlan, hub: Sequence[Asset], here: Mapping[Asset, Path | None]) -> RunPlan:
    """Return a plan of the host, whose run uses the cache anyway, with what is found there."""
    missing = {_key(asset) for asset in hub if here[asset] is None}
    found = {_key(asset): ORIGIN for asset in hub if _key(asset) not in missing}
    return replace(plan, origins={**plan.origins, **found})


def cache_environ(plan: RunPlan, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that locate a plan's hub cache: this environment, and on the host the plan's over it."""
    own = {name: str(value) for name, value in plan.env.items()} if not plan.traits.containerised else {}
    return {**environ, **own}


def data_inside(plan: RunPlan, folder: Path, data: Path) -> str:
    """Return a folder of prepared data as the plan's actions see it."""
    if not plan.traits.containerised:
        return str(folder)
    return str(PurePosixPath(DATA_INSIDE) / folder.relative_to(data).as_posix())


def _has_own(plan: RunPlan, environ: Mapping[str, str]) -> bool:
    """Say whether the user wants the run to use the network, or gave its container a cache."""
    env: Mapping[str, EnvValue] = cache_environ(plan, environ) if not plan.traits.containerised else plan.env
    online = any(env.get(name) and not is_on(env[name]) for name in OFFLINE)
    return online or (plan.traits.containerised and any(plan.env.get(name) for name in CACHES))


def _with_hub(plan: RunPlan, hub: Sequence[Asset], cache: Path, missing: str) -> RunPlan:
    """Return the plan that reads the repositories; a container's cache beside them is its own and can be written to."""
    host = not plan.traits.containerised
    folders = dict.fromkeys(repo_folder(asset, cache) for asset in hub)
    if (cache / _SHARED).is_dir():
        folders[cache / _SHARED] = None
    mounts = tuple(
        Mount(source=str(folder), target=f"{HUB_INSIDE}/{folder.name}", read_only=True) for folder in folders
    )
    switches = {name: "1" for name in _SWITCHES if name not in plan.env and not missing}
    refs = ", ".join(dict.fromkeys(asset.ref for asset in hub))
    note = f"{refs}: prepared in {cache}, {missing or 'nothing is fetched'}"
    env = {"HF_HUB_CACHE": str(cache) if host else HUB_INSIDE, **switches}
    plan = _with_env_and_mounts(plan, env, () if host else mounts, note)
    return replace(plan, origins={**plan.origins, **{_key(asset): ORIGIN for asset in hub}})


def _with_data(plan: RunPlan, name: str, places: Mapping[Asset, Path | None], data: Path) -> RunPlan:
    """Return the plan whose variable names the folder of a prepared data set; its files are all in the first one's."""
    asset, place = next(iter(places.items()))
    folder = data / PurePosixPath(asset.path).parent if asset.source == "url" else place or data
    inside = data_inside(plan, folder, data)
    mounts = () if not plan.traits.containerised else (Mount(source=str(folder), target=inside, read_only=True),)
    return _with_env_and_mounts(plan, {name: inside}, mounts, f"{name}: prepared in {folder}")


def _missing(here: Mapping[Asset, Path | None], plan: RunPlan) -> str:
    """Return what the run fetches for itself, and what brings it where something does; "" where nothing is missing."""
    missing = [asset for asset, place in here.items() if place is None]
    refs = ", ".join(dict.fromkeys(asset.ref for asset in missing))
    can = any(asset.source == "hub" or asset.path for asset in missing)
    way = f" ({command(plan)} brings what it can)" if can else ""
    return f"fetched by the run, for it is not prepared: {refs}{way}" if missing else ""


def command(plan: RunPlan) -> str:
    """Return what to type to have a plan's assets here."""
    return f"madlite prepare --tags {plan.card.name}"


def _with_env_and_mounts(plan: RunPlan, env: Mapping[str, EnvValue], mounts: tuple[Mount, ...], note: str) -> RunPlan:
    origins = {f"env.{name}": ORIGIN for name in env} | {f"mount {mount.target}": ORIGIN for mount in mounts}
    return replace(
        plan,
        env={**plan.env, **env},
        mounts=(*plan.mounts, *mounts),
        origins={**plan.origins, **origins},
        notes=(*plan.notes, note),
    )


# What of a run's assets is on this machine in full: found on the disk alone, no server is contacted.
#
# A repository of the hub lies in huggingface_hub's cache, a file of another server or data that a run made below the
# folder of prepared data.  What `madlite prepare` has seen complete is noted beside it, so that a later plan can tell.


COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
MAIN = "main"
NOTES = ".madlite"
_LONGEST_REF = 1 << 12
_LOCK_POLL_S = 0.2
_WEIGHTS = (".safetensors", ".bin", ".pth", ".pt", ".gguf", ".ckpt", ".distcp")
_SHARD = re.compile(r"(.*[-_.])(\d{5})-of-(\d{5})(.*)")
_WILD = frozenset("*?[")


class Stopped(Exception):
    """The command is being ended."""


class AssetRecord(Value, frozen=True):
    """Files that were complete, path → bytes; of a repository at `commit`, which `revision` meant then."""

    ref: str
    files: dict[str, int]
    patterns: tuple[str, ...] = ()
    revision: str = ""
    commit: str = ""

    def covers(self, patterns: tuple[str, ...]) -> bool:
        """Return whether every file that matches the patterns is among these."""
        return not self.patterns or bool(patterns and set(patterns) <= set(self.patterns))


def find_asset(asset: Asset, cache: Path, data: Path) -> Path | None:
    """Return where an asset lies, None where anything of it is missing; of a file it is the file."""
    return find_snapshot(asset, cache, data) if asset.source == "hub" else find_prepared(asset, data)


def find_snapshot(asset: Asset, cache: Path, data: Path) -> Path | None:
    """Return the folder of a repository's files in the hub's cache where all that match are complete."""
    folder = repo_folder(asset, cache)
    commit = known_commit(asset, folder)
    if not commit:
        return None
    snapshot = folder / "snapshots" / commit
    for files in _listings(asset, cache, data, commit):
        needed = matching(files, asset.files)
        if needed and are_complete(snapshot, needed):
            return snapshot
    return None


def find_prepared(asset: Asset, data: Path) -> Path | None:
    """Return the file or folder of prepared data where it is as it was when it was complete."""
    if not asset.path:
        return None
    place, record = data / asset.path, _read(data / _record_name(asset))
    if record is None or record.ref != asset.ref or not record.files:
        return None
    base = place.parent if asset.source == "url" else place
    return place if are_complete(base, record.files) else None


def scan_cache(asset: Asset, cache: Path) -> AssetRecord | None:
    """Return the needed files of a snapshot that looks complete, and of which nobody noted what the hub has.

    Another client of the hub left it.  It has something for each pattern and every shard: `-00001-of-00004` states how
    many there are.  Nothing is here in full while a partial file lies beside it.
    """
    folder = repo_folder(asset, cache)
    commit = known_commit(asset, folder)
    snapshot = folder / "snapshots" / commit
    if not commit or not snapshot.is_dir() or any((folder / "blobs").glob("*.incomplete")):
        return None
    found = (path for path in sorted(snapshot.rglob("*")) if path.is_symlink() or not path.is_dir())
    files = {path.relative_to(snapshot).as_posix(): size_of(path) for path in found}
    needed = matching(files, asset.files)
    if not needed or min(needed.values()) < 0 or not _answers(asset, needed, folder / ".no_exist" / commit):
        return None
    return AssetRecord(ref=asset.ref, files=needed, commit=commit) if _has_shards(needed, asset) else None


def matching(files: dict[str, int], patterns: Iterable[str]) -> dict[str, int]:
    """Return the files that one of the patterns matches, all where there is none; as huggingface_hub does it."""
    globs = [f"{pattern}*" if pattern.endswith("/") else pattern for pattern in patterns]
    return {name: size for name, size in files.items() if not globs or any(fnmatchcase(name, glob) for glob in globs)}


def is_wild(pattern: str) -> bool:
    """Return whether a pattern may match files of other names than itself."""
    return bool(_WILD & set(pattern)) or pattern.endswith("/")


def repo_type(asset: Asset) -> str:
    """Return what huggingface_hub calls the kind of an asset's repository: data sets have names of their own."""
    return "dataset" if asset.kind == "dataset" else "model"


def repo_folder(asset: Asset, cache: Path) -> Path:
    """Return where the hub's cache keeps a repository."""
    return cache / "--".join((f"{repo_type(asset)}s", *asset.ref.split("/")))


def known_commit(asset: Asset, folder: Path) -> str:
    """Return the commit that a repository's revision means to the cache, "" where it does not know."""
    revision = asset.revision or MAIN
    if COMMIT.fullmatch(revision):
        return revision
    try:
        told = read_plain(folder / "refs" / revision, limit_bytes=_LONGEST_REF).decode().strip()
    except (OSError, ValueError):
        return ""
    return told if COMMIT.fullmatch(told) else ""


def are_complete(folder: Path, files: dict[str, int]) -> bool:
    """Return whether all of the files are there and as long as they should be."""
    return all(size_of(folder / name) == size for name, size in files.items())


def size_of(file: Path) -> int:
    """Return a file's bytes, -1 where there is none."""
    try:
        return file.stat().st_size
    except (OSError, ValueError):
        return -1


def save_hub_record(asset: Asset, cache: Path, data: Path, record: AssetRecord) -> None:
    """Note a repository's files in its folder of the cache, which others may share, else beside prepared data.

    Raises:
        OSError: it can be written in neither place.
    """
    folder = repo_folder(asset, cache)
    name = f"{NOTES}/{folder.name}-{_digest(record.revision, *sorted(record.patterns))}.json"
    try:
        _write(folder, name, record)
    except OSError:
        _write(data, name, record)


def save_prepared_record(asset: Asset, data: Path, files: dict[str, int]) -> None:
    """Note the files of prepared data, which were complete.

    Raises:
        OSError: it cannot be written.
    """
    _write(data, _record_name(asset), AssetRecord(ref=asset.ref, files=files))


@contextmanager
def locked(asset: Asset, data: Path, stop: threading.Event, waiting: Callable[[], None]) -> Iterator[None]:
    """Be the only command that fetches or makes an asset of prepared data; `waiting` is called once where one is.

    Raises:
        Stopped: `stop` was set before it was our turn.
        OSError: the lock file cannot be made.
    """
    from filelock import Timeout
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]  # also where a disk has no flock

    file = (data / _record_name(asset)).with_suffix(".lock")
    file.parent.mkdir(parents=True, exist_ok=True)
    told = False
    while True:
        try:
            with WeakFileLock(file, timeout=_LOCK_POLL_S):
                yield
                return
        except Timeout:
            if stop.is_set():
                raise Stopped from None
            if not told:
                waiting()
            told = True


def _listings(asset: Asset, cache: Path, data: Path, commit: str) -> Iterator[dict[str, int]]:
    """Yield what is known of a commit's files: what was prepared, and what huggingface_hub itself notes."""
    folder = repo_folder(asset, cache)
    notes = [*(folder / NOTES).glob("*.json"), *(data / NOTES).glob(f"{folder.name}-*.json")]
    for record in filter(None, map(_read, sorted(notes))):
        if record.commit == commit and record.covers(asset.files):
            yield record.files
    try:
        listing = decode_json(read_plain(folder / "trees" / f"{commit}.json"))
        yield {str(name): int(entry.get("lfs_size") or entry["size"]) for name, entry in listing["files"].items()}
    except (OSError, NotJson, AttributeError, LookupError, TypeError, ValueError):
        return


def _answers(asset: Asset, needed: dict[str, int], known_absent: Path) -> bool:
    """Return whether each pattern has its file; of a tokenizer's names, which are alternatives, one is enough."""
    if asset.kind == "model" and not asset.files:
        return any(name.endswith(_WEIGHTS) for name in needed)
    if asset.kind == "tokenizer":
        return any(PurePosixPath(name).name.startswith(("tokenizer.", "vocab.", "spiece.")) for name in needed)
    return all(matching(needed, (pattern,)) or (known_absent / pattern).exists() for pattern in asset.files)


def _has_shards(needed: dict[str, int], asset: Asset) -> bool:
    for name in needed.keys() - {pattern for pattern in asset.files if not _WILD & set(pattern)}:
        if found := _SHARD.fullmatch(name):
            before, _, count, after = found.groups()
            shape = re.compile(rf"{re.escape(before)}\d{{5}}-of-{count}{re.escape(after)}")
            if sum(1 for other in needed if shape.fullmatch(other)) < int(count):
                return False
    return True


def _record_name(asset: Asset) -> str:
    return f"{NOTES}/{_digest(asset.path)}.json"


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:20]


def _read(file: Path) -> AssetRecord | None:
    """Return a record; one that is not there, or is none, is as if nothing had been prepared."""
    try:
        return msgspec.json.decode(read_plain(file), type=AssetRecord)
    except (OSError, ValueError, msgspec.DecodeError):
        return None


def _write(base: Path, name: str, record: AssetRecord) -> None:
    base.mkdir(parents=True, exist_ok=True)
    with Folder.open(base) as folder:
        folder.write(name, msgspec.json.format(msgspec.json.encode(record), indent=1))


# Room on a disk for what is to be fetched.

MARGIN, LEAST_BYTES = 0.05, 256 << 20  # of what is fetched, kept free beside it


class Demand(Value, frozen=True):
    """Bytes that are to be written below a folder; `way` states how to use another one."""

    folder: Path
    bytes: int
    way: str = ""


def find_full_disks(demands: Iterable[Demand]) -> list[tuple[str, str]]:
    """Return for each file system that has too little room for all that goes there what is wrong and what helps."""
    wanted: dict[int, list[Demand]] = {}
    for demand in demands:
        if demand.bytes > 0:
            wanted.setdefault(existing(demand.folder).stat().st_dev, []).append(demand)
    return [told for group in wanted.values() if (told := _shortage(group))]


def existing(folder: Path) -> Path:
    """Return the folder, or the nearest above it that is there."""
    return next((place for place in (folder, *folder.parents) if os.path.isdir(place)), Path("/"))  # noqa: PTH112 - also below one that may not be searched


def _shortage(group: list[Demand]) -> tuple[str, str] | None:
    needed = sum(demand.bytes for demand in group)
    needed += max(int(needed * MARGIN), LEAST_BYTES)
    free = shutil.disk_usage(existing(group[0].folder)).free
    if needed <= free:
        return None
    folders = " and ".join(dict.fromkeys(str(demand.folder) for demand in group))
    return (
        f"too little room in {folders}: {size_text(needed)} ({needed} bytes) are needed, {size_text(free)} "
        f"({free} bytes) are free",
        one_hint(*dict.fromkeys(demand.way for demand in group if demand.way)),
    )

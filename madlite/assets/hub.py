"""Repositories of the Hugging Face hub: what one has and whether we may have it, and its files into the hub's cache.

huggingface_hub downloads, locks, and lays the cache out; which files and how many bytes, whether they came whole, and
that a stop ends it is seen to here.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from madlite.assets.cache import (
    COMMIT,
    MAIN,
    AssetRecord,
    Stopped,
    are_complete,
    find_snapshot,
    is_dataset,
    is_wild,
    known_commit,
    matching,
    repo_folder,
    save_hub_record,
    size_of,
)
from madlite.assets.places import HUB, Token
from madlite.assets.refusals import Refused, missing_files, page, refusal
from madlite.assets.web import LIMIT_S, ProgressCallback, client, client_identity, counting, is_of_disk, is_sound, retry
from madlite.errors import RuntimeProblem
from madlite.model import Asset, Cause, Say, Value

_WORKERS = 8  # files at a time, as huggingface_hub has it


class Access(Value, frozen=True):
    """Where the hub is, and as whom we ask."""

    endpoint: str
    token: Token | None = None

    @property
    def word(self) -> str | bool:
        """The token as huggingface_hub wants it; False keeps it from looking for one itself."""
        return self.token.value.reveal() if self.token else False


class Listing(Value, frozen=True):
    """The files of a repository that a run needs, path → bytes, at a commit; `absent` are names that it has not."""

    commit: str
    files: dict[str, int]
    blobs: dict[str, str] = {}  # path → name of its blob in the cache: the hash of its bytes, where the hub reports it
    absent: tuple[str, ...] = ()
    there: tuple[str, ...] = ()  # where nothing matches: what it has instead

    @property
    def bytes(self) -> int:
        """How much it is."""
        return sum(self.files.values())


def list_files(asset: Asset, access: Access) -> Listing:
    """Return what of a repository is needed, once a file of it was shown to be ours to have; nothing is fetched.

    Raises:
        Refused: the hub cannot be reached, knows no such repository or revision, wants its conditions accepted or a
            valid token, or has nothing that the patterns match.
    """
    _check_endpoint(access.endpoint)
    if access.token and not re.fullmatch(r"[!-~]+", access.token.value.reveal()):
        raise Refused(f"{access.token.origin} has characters that no token of the hub has", "copy it once more")
    try:
        listing = retry(lambda: _list(asset, access))
    except Refused:
        raise
    except Exception as error:  # each version of huggingface_hub has its own HTTP library's errors
        raise refusal(asset, access.endpoint, access.token, error) from error
    if not listing.files:
        raise missing_files(asset, access.endpoint, listing.there)
    return listing


def missing_bytes(asset: Asset, listing: Listing, cache: Path) -> int:
    """Return how much of a repository is still to be fetched."""
    folder = repo_folder(asset, cache)

    def is_here(name: str, size: int) -> bool:
        places = (folder / "snapshots" / listing.commit / name, folder / "blobs" / listing.blobs.get(name, ""))
        return any(place.is_file() and size_of(place) == size for place in places)

    return sum(size for name, size in listing.files.items() if not is_here(name, size))


@dataclass
class RepoDownload:
    """One repository on its way; `say` gets what is worth a line, `progress` the bytes.

    With `verify` what is here is read again, and fetched again where its bytes are not those that the hub names.
    """

    asset: Asset
    listing: Listing
    cache: Path
    access: Access
    say: Say
    progress: ProgressCallback
    stop: threading.Event
    verify: bool = False

    def __post_init__(self) -> None:
        self._folder = repo_folder(self.asset, self.cache)
        self._snapshot = self._folder / "snapshots" / self.listing.commit
        self._problems: list[Exception] = []

    def run(self, data: Path) -> Path:
        """Have all of the listing's files in the cache, note that they are, and return their folder.

        Raises:
            RuntimeProblem: one of them cannot be had; the others that came stay.
            OSError: one of them cannot be written.
        """
        asset, listing = self.asset, self.listing
        moved = known_commit(asset, self._folder) != listing.commit
        if self.verify or moved or not are_complete(self._snapshot, listing.files):
            self._fetch_all()
            if moved:  # has the cache know what the revision means now
                self._fetch(next(iter(listing.files)), asset.revision or MAIN)
        patterns, revision = tuple(sorted(asset.files)), asset.revision or MAIN
        record = AssetRecord(
            ref=asset.ref, files=listing.files, patterns=patterns, revision=revision, commit=listing.commit
        )
        save_hub_record(asset, self.cache, data, record)
        found = find_snapshot(asset, self.cache, data)
        if found is None:
            raise RuntimeProblem(
                f"{asset.ref} changed on the hub while it was fetched", "try again", cause=Cause.PREPARE
            )
        return found

    def _fetch_all(self) -> None:
        """Work on files side by side; the first problem ends it.

        The threads are left where a stop finds them waiting for a server: an executor's would keep the command alive.
        """
        names = iter(list(self.listing.files))
        threads = [threading.Thread(target=self._work, args=(names,), daemon=True) for _ in range(_WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._problems:
            raise self._problems[0]
        if self.stop.is_set():
            raise Stopped

    def _work(self, names: Iterator[str]) -> None:
        try:
            for name in names:
                self._have(name)
        except Stopped:
            return
        except Exception as error:  # noqa: BLE001 - raised again by who waits
            self._problems.append(error)

    def _is_stopped(self) -> bool:
        return self.stop.is_set() or bool(self._problems)

    def _have(self, name: str) -> None:
        """Have one file whole: huggingface_hub takes what is there for whole, and inspects lengths as it comes."""
        if self._is_stopped():
            raise Stopped
        place, size = self._snapshot / name, self.listing.files[name]
        here = size_of(place)
        damaged = here >= 0 and not self._is_whole(name, read=self.verify)
        if damaged:
            self.say(f"{name} of {self.asset.ref} is damaged: it is fetched again")
        elif here >= 0:
            return
        self._fetch(name, self.listing.commit, force=damaged)
        if size_of(place) != size:  # it linked what lay among the blobs
            self._fetch(name, self.listing.commit, force=True)
        if not self._is_whole(name, read=True):
            place.resolve().unlink(missing_ok=True)
            what = f"{name} of {self.asset.ref} came damaged: its bytes are not those that {self.access.endpoint} names"
            hint = "try again; if it stays so, the mirror or a proxy on the way changes what it passes on"
            raise RuntimeProblem(what, hint, cause=Cause.PREPARE)

    def _is_whole(self, name: str, read: bool) -> bool:
        place = self._snapshot / name
        whole = size_of(place) == self.listing.files[name]
        return whole and (not read or is_sound(place, self.listing.blobs.get(name, "")))

    def _fetch(self, name: str, revision: str, force: bool = False) -> None:
        try:
            client().hf_hub_download(
                self.asset.ref,
                name,
                repo_type=_kind(self.asset),
                revision=revision,
                cache_dir=os.fspath(self.cache),
                token=self.access.word,
                endpoint=self.access.endpoint,
                etag_timeout=LIMIT_S,
                force_download=force,
                tqdm_class=counting(self.progress, self._is_stopped),
                **client_identity(),
            )
        except Stopped:
            raise
        except Exception as error:
            if is_of_disk(error):
                raise
            why = refusal(self.asset, self.access.endpoint, self.access.token, error)
            hint = "; ".join(filter(None, (why.hint, "files that came are kept")))
            raise RuntimeProblem(why.message, hint, cause=Cause.PREPARE) from error


def _list(asset: Asset, access: Access) -> Listing:
    """Ask for files by their names where all are named: a listing of all that a large data set has takes minutes."""
    api = client().HfApi(endpoint=access.endpoint, token=access.word, **client_identity())
    kind, by_name = _kind(asset), bool(asset.files) and not any(map(is_wild, asset.files))
    info = api.repo_info(asset.ref, repo_type=kind, revision=asset.revision or None, timeout=LIMIT_S)
    if not COMMIT.fullmatch(info.sha or ""):  # it becomes a path
        what = f"{access.endpoint} names a commit of {asset.ref} {info.sha!a}, which is none"
        raise Refused(what, "HF_ENDPOINT may name a server that is no hub")
    at = {"repo_type": kind, "revision": info.sha}
    if by_name:
        entries = api.get_paths_info(asset.ref, list(asset.files), **at)
    else:
        entries = api.list_repo_tree(asset.ref, recursive=True, **at)
    found = {one.path: one for one in entries if hasattr(one, "blob_id")}
    files = matching({name: int(one.size) for name, one in found.items()}, asset.files)
    _check_names(asset, files, access.endpoint)
    if files:  # the largest is requested: a gated repository may show everybody its README
        largest = max(files, key=lambda name: files[name])
        url = client().hf_hub_url(asset.ref, largest, endpoint=access.endpoint, **at)
        client().get_hf_file_metadata(url, token=access.word, timeout=LIMIT_S, **client_identity())
    return Listing(
        commit=info.sha,
        files=files,
        blobs={name: str((found[name].lfs or {}).get("sha256") or found[name].blob_id or "") for name in files},
        absent=tuple(name for name in asset.files if by_name and name not in files),
        there=() if files else tuple(one.rfilename for one in info.siblings or ()),
    )


def _kind(asset: Asset) -> str:
    return "dataset" if is_dataset(asset) else "model"


def _check_endpoint(endpoint: str) -> None:
    """Refuse an invalid address, before a library raises an error of its own about it.

    Raises:
        Refused: it is none.
    """
    try:
        parts = urlsplit(endpoint)
        fine = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        fine = False
    if not fine or not re.fullmatch(r"[!-~]+", endpoint):
        what = f"HF_ENDPOINT is '{endpoint}', which is no address of a hub"
        raise Refused(what, f"export HF_ENDPOINT={HUB}, or unset it")


def _check_names(asset: Asset, files: Iterable[str], endpoint: str) -> None:
    """Refuse a repository that names files as no hub does: they become paths.

    Raises:
        Refused: it has such a name.
    """
    for name in files:
        if not name.isprintable() or not {"", ".", ".."}.isdisjoint(name.split("/")):
            what = f"{endpoint} names a file of {asset.ref} {name!a}, which would lie elsewhere or is no file's name"
            hint = f"look at {page(asset, endpoint)}, and at what HF_ENDPOINT names"
            raise Refused(what, hint)

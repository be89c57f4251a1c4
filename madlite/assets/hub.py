"""Repositories of the Hugging Face hub: what one has and whether we may have it, and its files into the hub's cache.

huggingface_hub downloads, locks, and lays the cache out; which files and how many bytes, whether they came whole, and
that a stop ends it is seen to here.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from madlite.assets.paths import (
    COMMIT,
    HUB,
    MAIN,
    AssetRecord,
    Stopped,
    Token,
    are_complete,
    find_snapshot,
    is_wild,
    known_commit,
    matching,
    repo_folder,
    repo_type,
    save_hub_record,
    size_of,
)
from madlite.assets.web import (
    LIMIT_S,
    ProgressCallback,
    answered,
    client,
    client_identity,
    counting,
    is_foreign,
    is_of_disk,
    is_sound,
    later,
    retry,
    status_of,
)
from madlite.errors import MadliteError, RuntimeProblem
from madlite.model import Asset, Cause, Say, Value

# Why the hub does not give a repository, and what to do about it.

_NAMES = 8  # files that are named of a repository
_SET = "export MAD_SECRETS_HFTOKEN=… (or HF_TOKEN)"


class Refused(MadliteError):
    """A repository cannot be had; nothing was fetched."""


class Unknown(Refused):
    """The hub does not have what is requested: whoever asks may have it wrong."""


def refusal(asset: Asset, endpoint: str, token: Token | None, error: Exception) -> Refused:
    """Return the refusal that an error of huggingface_hub, or of its HTTP library, stands for.

    Raises:
        Exception: the error itself, where it is none of theirs.
    """
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError

    status, found = status_of(error), answered(error)
    if isinstance(error, HFValidationError):
        return Unknown(f"{asset.ref!a} is no name of a repository of the hub", asset.hint or "it is called OWNER/NAME")
    if status is None:
        return _unreachable(endpoint, error)
    if isinstance(found, EntryNotFoundError):
        files = f"{page(asset, endpoint)}/tree/{asset.revision or MAIN}"
        what = f"{asset.ref} on {endpoint} lacks a file that its own listing names: {_main_line(found)}"
        return Refused(what, f"try again: it may have changed meanwhile; its files: {files}")
    if host := _other_host(found, endpoint):
        what = f"{host}, which has the files of {asset.ref} for {endpoint}, answered {status}"
        return Refused(what, "try again; if it stays so, see whether network and proxy let that host through")
    told = _of_repository(asset, endpoint, token, found, status)
    said = "; ".join(filter(None, (_main_line(found), later(error))))
    return told or _of_answer(asset, endpoint, token, said, status)


def missing_files(asset: Asset, endpoint: str, there: Sequence[str]) -> Refused:
    """Return the refusal of a repository that has nothing that is requested; `there` is what it has."""
    if not there:
        return Unknown(
            f"{asset.ref} on {endpoint} has no file at all", f"see {page(asset, endpoint)}" + _alternative(asset)
        )
    more = f" and {len(there) - _NAMES} more" if len(there) > _NAMES else ""
    return Unknown(
        f"{asset.ref} on {endpoint} has no file that matches {', '.join(asset.files) or 'what is needed'}",
        f"it has {', '.join(there[:_NAMES])}{more}" + _alternative(asset),
    )


def _of_repository(
    asset: Asset, endpoint: str, token: Token | None, error: BaseException, status: int
) -> Refused | None:
    """Return what the hub reports about the repository itself."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return _gated(asset, endpoint, token)
    if isinstance(error, RevisionNotFoundError):
        way = f"its branches and tags: {page(asset, endpoint)}/tree/{MAIN}"
        return Unknown(
            f"{asset.ref} on {endpoint} has no revision '{asset.revision or MAIN}'", way + _alternative(asset)
        )
    if isinstance(error, RepositoryNotFoundError) and not (token and status == 401):
        return _unknown(asset, endpoint, token)
    return None


def _of_answer(asset: Asset, endpoint: str, token: Token | None, said: str, status: int) -> Refused:
    """Return what the answer's number says."""
    ref = asset.ref
    if status == 401 and token:
        what = f"the hub does not accept the token in {token.origin} (401, asked for {ref})"
        return Refused(what, f"make a new one at {endpoint}/settings/tokens, then {_SET}")
    if status in (401, 403):
        used = f" with the token in {token.origin}" if token else ""
        rights = f"see {page(asset, endpoint)} and the rights of your token at {endpoint}/settings/tokens"
        return Refused(f"the hub refuses {ref}{used}: {said}", rights)
    if status == 404:
        return _unknown(asset, endpoint, token)
    hint = "try again later; a token gets more requests through" if status == 429 and not token else "try again later"
    return Refused(f"{endpoint} answered {status} when asked for {ref}: {said}", hint)


def _other_host(error: BaseException, endpoint: str) -> str:
    """Return who answered, where the hub had sent us on to another host."""
    url = str(getattr(getattr(error, "response", None), "url", ""))
    return "" if urlsplit(url).netloc == urlsplit(endpoint).netloc else urlsplit(url).netloc


def page(asset: Asset, endpoint: str) -> str:
    """Return where people see a repository."""
    return f"{endpoint or HUB}/{'datasets/' if asset.kind == 'dataset' else ''}{asset.ref}"


def _gated(asset: Asset, endpoint: str, token: Token | None) -> Refused:
    where = page(asset, endpoint)
    if token is None:
        what = f"{asset.ref} is a gated repository, and there is no Hugging Face token"
        return Refused(what, f"accept its conditions at {where}, then {_SET}" + _alternative(asset))
    return Refused(
        f"{asset.ref} is a gated repository, and the account of the token in {token.origin} has no access to it",
        f"accept its conditions at {where} with that account, or {_SET} of one that has access; a fine-grained token "
        "also needs the right to read gated repositories" + _alternative(asset),
    )


def _unknown(asset: Asset, endpoint: str, token: Token | None) -> Refused:
    kind = "data set" if asset.kind == "dataset" else "model"
    private = "it may be private to others" if token else f"if it is private: {_SET}"
    return Unknown(
        f"{endpoint} has no {kind} repository {asset.ref}", f"check the name; {private}" + _alternative(asset)
    )


def _unreachable(endpoint: str, error: Exception) -> Refused:
    if not is_foreign(error):
        raise error
    root: BaseException = error  # the libraries around it name the address that was requested, each time another
    while root.__cause__ or root.__context__:
        root = root.__cause__ or root.__context__ or root
    return Refused(
        f"the hub at {endpoint} cannot be reached: {_main_line(root)}",
        "check network and proxy; HF_ENDPOINT names a mirror; --offline uses what is here",
    )


def _alternative(asset: Asset) -> str:
    return f"; or {asset.hint}" if asset.hint else ""


def _main_line(error: BaseException) -> str:
    """Return the telling line of an error."""
    told = getattr(error, "server_message", None) or str(error) or type(error).__name__
    lines = [line.strip() for line in str(told).splitlines() if line.strip()]
    return (lines[-1] if len(lines) > 1 and lines[0].startswith(("4", "5")) else lines[0])[:300] if lines else ""


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
                repo_type=repo_type(self.asset),
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
    kind, by_name = repo_type(asset), bool(asset.files) and not any(map(is_wild, asset.files))
    info = api.repo_info(asset.ref, repo_type=kind, revision=asset.revision or None, timeout=LIMIT_S)
    if not COMMIT.fullmatch(info.sha or ""):  # it becomes a path
        what = f"{access.endpoint} names a commit of {asset.ref} {info.sha!a}, which is none"
        raise Refused(what, "HF_ENDPOINT may name a server that is no hub")
    at = {"repo_type": kind, "revision": info.sha}
    if by_name:
        entries = api.get_paths_info(asset.ref, list(asset.files), **at)
    else:
        entries = api.list_repo_tree(asset.ref, recursive=True, **at)
    found = {entry.path: entry for entry in entries if hasattr(entry, "blob_id")}
    files = matching({name: int(item.size) for name, item in found.items()}, asset.files)
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
        there=() if files else tuple(sibling.rfilename for sibling in info.siblings or ()),
    )


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

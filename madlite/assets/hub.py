"""Repositories of the Hugging Face hub: what one has and whether we may have it, and its files into the hub's cache.

huggingface_hub downloads, verifies lengths, locks, and lays the cache out; which files and how many bytes, and that a
stop ends it is seen to here.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from madlite.assets.paths import (
    COMMIT,
    HUB,
    MAIN,
    AssetRecord,
    Stopped,
    Token,
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
    status_of,
)
from madlite.errors import MadliteError, RuntimeProblem
from madlite.model import Asset, Cause, Value

# Why the hub does not give a repository, and what to do about it.

_NAMES = 8  # files that are named of a repository
_SET = "export MAD_SECRETS_HFTOKEN=… (or HF_TOKEN)"


class Refused(MadliteError):
    """A repository cannot be had; nothing was fetched."""


def refusal(asset: Asset, endpoint: str, token: Token | None, error: Exception) -> Refused:
    """Return the refusal that an error of huggingface_hub, or of its HTTP library, stands for.

    Raises:
        Exception: the error itself, where it is none of theirs.
    """
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    status, found, ref = status_of(error), answered(error), asset.ref
    if isinstance(error, HFValidationError):
        return Refused(f"{ref!a} is no name of a repository of the hub", asset.hint or "it is called OWNER/NAME")
    if status is None:
        return _unreachable(endpoint, error)
    if isinstance(found, GatedRepoError):
        return _gated(asset, endpoint, token)
    if isinstance(found, RevisionNotFoundError):
        way = f"its branches and tags: {page(asset, endpoint)}/tree/{MAIN}"
        what = f"{ref} on {endpoint} has no revision '{asset.revision or MAIN}'"
        return Refused(what, way + _alternative(asset))
    if status == 401 and token:
        what = f"the hub does not accept the token in {token.origin} (401, asked for {ref})"
        return Refused(what, f"make a new one at {endpoint}/settings/tokens, then {_SET}")
    if isinstance(found, RepositoryNotFoundError):
        return _unknown(asset, endpoint, token)
    if status in (401, 403):
        used = f" with the token in {token.origin}" if token else ""
        rights = f"see {page(asset, endpoint)} and the rights of your token at {endpoint}/settings/tokens"
        return Refused(f"the hub refuses {ref}{used} ({status}): {_main_line(found)}", rights)
    hint = "try again later; a token gets more requests through" if status == 429 and not token else "try again later"
    return Refused(f"{endpoint} answered {status} when asked for {ref}: {_main_line(found)}", hint)


def missing_files(asset: Asset, endpoint: str, there: Sequence[str]) -> Refused:
    """Return the refusal of a repository that has nothing that is requested; `there` is what it has."""
    more = f" and {len(there) - _NAMES} more" if len(there) > _NAMES else ""
    return Refused(
        f"{asset.ref} on {endpoint} has no file that matches {', '.join(asset.files) or 'what is needed'}",
        f"it has {', '.join(there[:_NAMES]) or 'none'}{more}" + _alternative(asset),
    )


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
    return Refused(
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
    absent: tuple[str, ...] = ()

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
    if access.token and not re.fullmatch(r"[!-~]+", access.token.value.reveal()):  # no message is to have a part of it
        raise Refused(f"{access.token.origin} has characters that no token of the hub has", "copy it once more")
    try:
        return _list(asset, access)
    except Refused:
        raise
    except Exception as error:  # each version of huggingface_hub has its own HTTP library's errors
        raise refusal(asset, access.endpoint, access.token, error) from error


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
    files = matching({entry.path: int(entry.size) for entry in entries if hasattr(entry, "blob_id")}, asset.files)
    if not files:
        raise missing_files(asset, access.endpoint, [sibling.rfilename for sibling in info.siblings or ()])
    _check_names(asset, files, access.endpoint)
    largest = max(files, key=lambda name: files[name])  # a gated repository may show everybody its README
    url = client().hf_hub_url(asset.ref, largest, endpoint=access.endpoint, **at)
    client().get_hf_file_metadata(url, token=access.word, timeout=LIMIT_S, **client_identity())
    absent = tuple(name for name in asset.files if by_name and name not in files)
    return Listing(commit=info.sha, files=files, absent=absent)


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


def missing_bytes(asset: Asset, listing: Listing, cache: Path) -> int:
    """Return how much of a repository is still to be fetched."""
    snapshot = repo_folder(asset, cache) / "snapshots" / listing.commit
    return sum(size for name, size in listing.files.items() if size_of(snapshot / name) != size)


@dataclass
class RepoDownload:
    """One repository on its way; `progress` gets the bytes."""

    asset: Asset
    listing: Listing
    access: Access
    cache: Path
    progress: ProgressCallback
    stop: threading.Event

    def run(self, data: Path) -> Path:
        """Have all of the listing's files in the cache, note that they are, and return their folder.

        Raises:
            RuntimeProblem: one of them cannot be had; the others that came stay.
            OSError: one of them cannot be written.
            Stopped: `stop` was set.
        """
        asset, listing, revision = self.asset, self.listing, self.asset.revision or MAIN
        self._fetch_all()
        if known_commit(asset, repo_folder(asset, self.cache)) != listing.commit:
            self._fetch(next(iter(listing.files)), revision)  # has the cache know what the revision means now
        patterns = tuple(sorted(asset.files))
        record = AssetRecord(
            ref=asset.ref, files=listing.files, patterns=patterns, revision=revision, commit=listing.commit
        )
        save_hub_record(asset, self.cache, data, record)
        found = find_snapshot(asset, self.cache, data)
        if found is None:
            what = f"{asset.ref} changed on the hub while it was fetched"
            raise RuntimeProblem(what, "try again", cause=Cause.PREPARE)
        return found

    def _fetch_all(self) -> None:
        """Work on files side by side; the first problem ends it.

        The threads are left where a stop finds them waiting for a server: an executor's would keep the command alive.
        """
        self._problems: list[Exception] = []
        names = iter(list(self.listing.files))
        threads = [threading.Thread(target=self._work, args=(names,), daemon=True) for _ in range(_WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._problems:
            raise self._problems[0]

    def _work(self, names: Iterator[str]) -> None:
        snapshot = repo_folder(self.asset, self.cache) / "snapshots" / self.listing.commit
        try:
            for name in names:
                for force in (False, True):  # huggingface_hub takes what lies in the cache for whole
                    if size_of(snapshot / name) != self.listing.files[name]:
                        self._fetch(name, self.listing.commit, force=force)
        except Exception as error:  # noqa: BLE001 - raised again by who waits
            self._problems.append(error)

    def _is_stopped(self) -> bool:
        return self.stop.is_set() or bool(self._problems)

    def _fetch(self, name: str, revision: str, *, force: bool = False) -> None:
        if self._is_stopped():
            raise Stopped
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

"""Ask the Hugging Face hub what a repository has, and whether we may have it; nothing is fetched.

Only what every server answers that huggingface_hub downloads from is asked: a repository's listing, and a file's head.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from madlite.assets.client import hub_client, named
from madlite.assets.hub_words import Refused, Unknown, missing_files, page, refusal
from madlite.assets.names import COMMIT, is_file_name, is_repo, is_revision
from madlite.assets.places import HUB, Token
from madlite.assets.records import MAIN, is_dataset, matching
from madlite.assets.tries import patiently
from madlite.model import Asset, Value

_WILD = frozenset("*?[")
_MANY = 50_000  # files: from there on a repository's listing is said to be cut
_LIMIT_S = 30.0


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
    blobs: dict[str, str] = {}  # path → name of its blob in the cache, where the listing says it
    absent: tuple[str, ...] = ()
    there: tuple[str, ...] = ()  # where nothing matches: what it has instead

    @property
    def bytes(self) -> int:
        """How much it is."""
        return sum(self.files.values())


class Head(Value, frozen=True):
    """What the head of a file says."""

    commit: str
    etag: str
    size: int


def ask(asset: Asset, access: Access) -> Listing:
    """Return what of a repository is needed, once a file of it was shown to be ours to have.

    Raises:
        Refused: the hub cannot be reached, knows no such repository or revision, wants its conditions accepted or a
            valid token, or has nothing that the patterns match.
    """
    _check(access.endpoint)
    _check_names(asset)
    if access.token and not re.fullmatch(r"[!-~]+", access.token.value.reveal()):
        raise Refused(f"{access.token.origin} has characters that no token of the hub has", "copy it once more")
    try:
        listing = _named(asset, access) if asset.files and not _wild(asset) else _listed(asset, access)
    except Refused:
        raise
    except Exception as error:  # each version of huggingface_hub has its own HTTP library's errors
        raise refusal(asset, access.endpoint, access.token, error) from error
    if not listing.files:
        raise missing_files(asset, access.endpoint, listing.there)
    check_commit(asset, listing.commit, access.endpoint)
    return listing


def _check_names(asset: Asset) -> None:
    """Refuse what cannot be the name of a repository, or of a revision or file of one: all become paths.

    Raises:
        Unknown: one is none.
    """
    hint = asset.hint or "a repository is called OWNER/NAME"
    if not is_repo(asset.ref):
        raise Unknown(f"{asset.ref!a} is no name of a repository of the hub", hint)
    if asset.revision and not is_revision(asset.revision):
        raise Unknown(f"{asset.revision!a} is no branch, tag or commit of {asset.ref}", hint)


def _check_files(asset: Asset, files: Iterable[str], endpoint: str) -> None:
    """Refuse a repository that is to have files whose names would lead elsewhere; nothing of it is fetched.

    Raises:
        Refused: it has such a name.
    """
    if odd := next((name for name in files if not is_file_name(name)), ""):
        what = f"{endpoint} names a file of {asset.ref} {odd!a}, which would lie elsewhere or is no file's name"
        hint = f"look at {page(asset.ref, endpoint, is_dataset(asset))}, and at what HF_ENDPOINT names"
        raise Refused(what, hint)


def check_commit(asset: Asset, commit: str, endpoint: str) -> None:
    """Refuse what a server calls a commit and is none; "" stands for one that it does not say.

    Raises:
        Refused: it is none.
    """
    if commit and not COMMIT.fullmatch(commit):
        what = f"{endpoint} names a commit of {asset.ref} {commit!a}, which is none"
        raise Refused(what, "HF_ENDPOINT may name a server that is no hub")


def _check(endpoint: str) -> None:
    """Refuse an address that is none, before a library says something of its own about it.

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


def head(
    asset: Asset,
    name: str,
    commit: str,
    access: Access,
    stop: threading.Event | None = None,
    passes: Callable[[Exception], bool] = lambda error: False,
) -> Head:
    """Return the head of a file.

    Raises:
        Exception: of huggingface_hub and its HTTP library.
        Refused: what it says makes no sense.
        Stopped: `stop` was set while a hub in trouble was waited for.
    """
    ask_head, url = hub_client().get_hf_file_metadata, file_url(asset, name, commit, access)
    found = patiently(
        lambda: ask_head(url, token=access.word, timeout=_LIMIT_S, **named()), stop or threading.Event(), passes
    )
    check_commit(asset, found.commit_hash or "", access.endpoint)
    return Head(
        commit=found.commit_hash or commit, etag=found.etag or "", size=-1 if found.size is None else found.size
    )


def file_url(asset: Asset, name: str, commit: str, access: Access) -> str:
    """Return the address of a file."""
    url: str = hub_client().hf_hub_url(
        asset.ref, name, repo_type=_kind(asset), revision=commit or MAIN, endpoint=access.endpoint
    )
    return url


def _wild(asset: Asset) -> bool:
    return any(_WILD & set(pattern) or pattern.endswith("/") for pattern in asset.files)


def _named(asset: Asset, access: Access) -> Listing:
    """Ask for files by their names: a listing of all that a large data set has takes minutes."""
    from huggingface_hub.errors import EntryNotFoundError

    info = _info(asset, access, sizes=False)
    commit, files, blobs, absent = info.sha or "", {}, {}, []
    _check_files(asset, asset.files, access.endpoint)
    for name in asset.files:
        try:
            found = head(asset, name, commit, access)
        except EntryNotFoundError:
            absent.append(name)
            continue
        commit, files[name], blobs[name] = commit or found.commit, found.size, found.etag
    there = () if files else tuple(one.rfilename for one in info.siblings or ())
    return Listing(commit=commit, files=files, blobs=blobs, absent=tuple(absent), there=there)


def _listed(asset: Asset, access: Access) -> Listing:
    info = _info(asset, access, sizes=True)
    commit = info.sha or ""
    found = [(one.rfilename, one) for one in info.siblings or ()]
    if not found or len(found) >= _MANY:
        found = [(one.path, one) for one in _tree(asset, access, commit)]
    sizes = {name: -1 if one.size is None else int(one.size) for name, one in found}
    needed = matching(sizes, asset.files)
    _check_files(asset, needed, access.endpoint)
    for name in [name for name, size in needed.items() if size < 0]:
        needed[name] = head(asset, name, commit, access).size
    blobs = {name: _blob(one) for name, one in found if name in needed}
    if needed:  # the largest: a gated repository may show everybody its README
        shown = head(asset, max(needed, key=lambda name: needed[name]), commit, access)
        commit = commit or shown.commit
    return Listing(commit=commit, files=needed, blobs=blobs, there=() if needed else tuple(sizes))


def _info(asset: Asset, access: Access, sizes: bool) -> Any:
    api, revision = _api(access), asset.revision or None
    return patiently(
        lambda: api.repo_info(
            asset.ref, repo_type=_kind(asset), revision=revision, files_metadata=sizes, timeout=_LIMIT_S
        ),
        threading.Event(),
    )


def _tree(asset: Asset, access: Access, commit: str) -> list[Any]:
    api, revision = _api(access), commit or asset.revision or None
    tree = patiently(
        lambda: list(api.list_repo_tree(asset.ref, repo_type=_kind(asset), revision=revision, recursive=True)),
        threading.Event(),
    )
    return [one for one in tree if hasattr(one, "blob_id")]


def _api(access: Access) -> Any:
    return hub_client().HfApi(endpoint=access.endpoint, token=access.word, **named())


def _kind(asset: Asset) -> str:
    return "dataset" if is_dataset(asset) else "model"


def _blob(entry: Any) -> str:
    lfs: Mapping[str, Any] | None = getattr(entry, "lfs", None)
    return str((lfs or {}).get("sha256") or getattr(entry, "blob_id", None) or "")

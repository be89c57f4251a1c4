"""Why the hub does not give a repository, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from madlite.assets.cache import MAIN, is_dataset
from madlite.assets.places import HUB, Token
from madlite.assets.web import answered, is_foreign, later, status_of
from madlite.errors import MadliteError
from madlite.model import Asset

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
        return _lacking(asset, endpoint, _main_line(found))
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
        return _bad_token(endpoint, token, ref)
    if status in (401, 403):
        return Refused(f"the hub refuses {ref}{_with_token(token)}: {said}", _rights(asset, endpoint))
    if status == 404:
        return _unknown(asset, endpoint, token)
    hint = "try again later; a token gets more requests through" if status == 429 and not token else "try again later"
    return Refused(f"{endpoint} answered {status} when asked for {ref}: {said}", hint)


def _lacking(asset: Asset, endpoint: str, said: str) -> Refused:
    return Refused(
        f"{asset.ref} on {endpoint} lacks a file that its own listing names: {said}",
        f"try again: it may have changed meanwhile; its files: {page(asset, endpoint)}/tree/{asset.revision or MAIN}",
    )


def _other_host(error: BaseException, endpoint: str) -> str:
    """Return who answered, where the hub had sent us on to another host."""
    url = str(getattr(getattr(error, "response", None), "url", ""))
    return "" if urlsplit(url).netloc == urlsplit(endpoint).netloc else urlsplit(url).netloc


def page(asset: Asset, endpoint: str) -> str:
    """Return where people see a repository."""
    return f"{endpoint or HUB}/{'datasets/' if is_dataset(asset) else ''}{asset.ref}"


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


def _bad_token(endpoint: str, token: Token, ref: str) -> Refused:
    return Refused(
        f"the hub does not accept the token in {token.origin} (401, asked for {ref})",
        f"make a new one at {endpoint}/settings/tokens, then {_SET}",
    )


def _unknown(asset: Asset, endpoint: str, token: Token | None) -> Refused:
    kind = "data set" if is_dataset(asset) else "model"
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


def _rights(asset: Asset, endpoint: str) -> str:
    return f"see {page(asset, endpoint)} and the rights of your token at {endpoint}/settings/tokens"


def _with_token(token: Token | None) -> str:
    return f" with the token in {token.origin}" if token else ""


def _alternative(asset: Asset) -> str:
    return f"; or {asset.hint}" if asset.hint else ""


def _main_line(error: BaseException) -> str:
    """Return the telling line of an error."""
    told = getattr(error, "server_message", None) or str(error) or type(error).__name__
    lines = [line.strip() for line in str(told).splitlines() if line.strip()]
    return (lines[-1] if len(lines) > 1 and lines[0].startswith(("4", "5")) else lines[0])[:300] if lines else ""

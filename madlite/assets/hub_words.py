"""Why the hub does not give a repository, in words that say what to do about it."""

from __future__ import annotations

from typing import Any

from madlite.assets.places import HUB, Token
from madlite.errors import MadliteError
from madlite.types import Asset

_LIBRARIES = ("huggingface_hub", "httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")
_SET = "export MAD_SECRETS_HFTOKEN=… (or HF_TOKEN)"


class Refused(MadliteError):
    """A repository cannot be had; nothing was fetched."""


def refusal(asset: Asset, endpoint: str, token: Token | None, error: Exception) -> Refused:
    """Return the refusal that an error of huggingface_hub, or of its HTTP library, stands for.

    Raises:
        Exception: the error itself, where it is none of theirs.
    """
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError

    status = _status(error)
    if isinstance(error, HFValidationError):
        return Refused(f"'{asset.ref}' is no name of a repository of the hub: {_said(error)}", asset.hint)
    if status is None:
        return _unreachable(endpoint, error)
    if isinstance(error, EntryNotFoundError):
        return Refused(f"{asset.ref} on {endpoint} lacks a file that its own listing names: {_said(error)}")
    return _of_repository(asset, endpoint, token, error) or _of_answer(asset, endpoint, token, error, status)


def _of_repository(asset: Asset, endpoint: str, token: Token | None, error: Exception) -> Refused | None:
    """Return what the hub says of the repository itself."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return _gated(asset, endpoint, token)
    if isinstance(error, RevisionNotFoundError):
        return Refused(f"{asset.ref} on {endpoint} has no revision '{asset.revision or 'main'}'", asset.hint)
    if isinstance(error, RepositoryNotFoundError) and not (token and _status(error) == 401):
        return _unknown(asset, endpoint, token)
    return None


def _of_answer(asset: Asset, endpoint: str, token: Token | None, error: Exception, status: int) -> Refused:
    """Return what the answer's number says."""
    ref = asset.ref
    if status == 401 and token:
        return _bad_token(endpoint, token, ref)
    if status in (401, 403):
        return Refused(f"the hub refuses {ref}{_as(token)}: {_said(error)}", _rights(ref, endpoint))
    if status == 404:
        return _unknown(asset, endpoint, token)
    hint = "try again later; a token gets more requests through" if status == 429 and not token else "try again later"
    return Refused(f"{endpoint} answered {status} when asked for {ref}: {_said(error)}", hint)


def page(ref: str, endpoint: str, dataset: bool = False) -> str:
    """Return where people see a repository."""
    return f"{endpoint or HUB}/{'datasets/' if dataset else ''}{ref}"


def _gated(asset: Asset, endpoint: str, token: Token | None) -> Refused:
    where = page(asset.ref, endpoint, asset.kind == "dataset")
    if token is None:
        what = f"{asset.ref} is a gated repository, and there is no Hugging Face token"
        return Refused(what, f"accept its conditions at {where}, then {_SET}" + _or(asset))
    return Refused(
        f"{asset.ref} is a gated repository, and the account of the token in {token.origin} has no access to it",
        f"accept its conditions at {where} with that account, or {_SET} of one that has access; a fine-grained token "
        "also needs the right to read gated repositories" + _or(asset),
    )


def _bad_token(endpoint: str, token: Token, ref: str) -> Refused:
    return Refused(
        f"the hub does not accept the token in {token.origin} (401, asked for {ref})",
        f"make a new one at {endpoint}/settings/tokens, then {_SET}",
    )


def _unknown(asset: Asset, endpoint: str, token: Token | None) -> Refused:
    kind = "data set" if asset.kind == "dataset" else "model"
    private = "it may be private to others" if token else f"if it is private: {_SET}"
    return Refused(f"{endpoint} has no {kind} repository {asset.ref}", f"check the name; {private}" + _or(asset))


def _unreachable(endpoint: str, error: Exception) -> Refused:
    if not _is_foreign(error):
        raise error
    root: BaseException = error  # the libraries around it name the address that was asked for, each time another
    while root.__cause__ or root.__context__:
        root = root.__cause__ or root.__context__ or root
    return Refused(
        f"the hub at {endpoint} cannot be reached: {_said(root)}",
        "check network and proxy; HF_ENDPOINT names a mirror; --offline uses what is here",
    )


def _rights(ref: str, endpoint: str) -> str:
    return f"see {page(ref, endpoint)} and the rights of your token at {endpoint}/settings/tokens"


def _as(token: Token | None) -> str:
    return f" with the token in {token.origin}" if token else ""


def _or(asset: Asset) -> str:
    return f"; or {asset.hint}" if asset.hint else ""


def _is_foreign(error: Exception) -> bool:
    """Say whether an error is of the network or of the libraries that use it, and no mistake of ours."""
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _LIBRARIES


def _status(error: Exception) -> int | None:
    answer: Any = getattr(error, "response", None)
    return getattr(answer, "status_code", None)


def _said(error: BaseException) -> str:
    """Return the telling line of an error."""
    told = getattr(error, "server_message", None) or str(error) or type(error).__name__
    lines = [line.strip() for line in str(told).splitlines() if line.strip()]
    return (lines[-1] if len(lines) > 1 and lines[0].startswith(("4", "5")) else lines[0])[:300] if lines else ""

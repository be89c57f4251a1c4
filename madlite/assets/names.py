"""Names that a hub, or a configuration, calls things by, as they may become paths of this machine.

Grammar of repositories: huggingface_hub's `validate_repo_id`; of revisions: git's check-ref-format.
"""

from __future__ import annotations

import re

COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
SHA256 = re.compile(r"[0-9a-f]{64}")
_REPO = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*/)?[A-Za-z0-9_][A-Za-z0-9._-]*")
_LONGEST_NAME, _LONGEST_FILE = 96, 1024
_REVISION = re.compile(r"[^\x00-\x20\x7f~^:?*\[\\/][^\x00-\x20\x7f~^:?*\[\\]{0,255}")
_UNPRINTED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_DRIVE = re.compile(r"[A-Za-z]:")


def is_repo(ref: str) -> bool:
    """Say whether a text can be the name of a repository of the hub: `name`, or `owner/name`."""
    odd = any(part.endswith(("-", ".")) or len(part) > _LONGEST_NAME for part in ref.split("/"))
    return bool(_REPO.fullmatch(ref)) and not odd and "--" not in ref and ".." not in ref


def is_revision(text: str) -> bool:
    """Say whether a text can be the name of a branch, a tag or a commit."""
    return bool(_REVISION.fullmatch(text)) and ".." not in text and "//" not in text and not text.endswith("/")


def is_file_name(name: str) -> bool:
    """Say whether a text can be a file's path below a folder, on every system: no `..`, backslash or drive."""
    parts = name.split("/")
    odd = "\\" in name or _UNPRINTED.search(name) or _DRIVE.match(name) or len(name) > _LONGEST_FILE
    return not odd and all(part not in ("", ".", "..") and len(part.encode()) <= 255 for part in parts)

"""Kubernetes' own schemas, for objects that are made or taken here."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kubernetes_validate import utils

VERSION = "1.37"
# it reads the 2 MB of a version for every object anew, which takes fifty times as long as the look at the object
utils.schema_contents = lru_cache(maxsize=8)(utils.schema_contents)


def validate(body: dict[str, Any], version: str = VERSION) -> None:
    """Look at an object of the API groups that a server has by itself, strictly.

    Raises:
        kubernetes_validate.ValidationError: a field is unknown, missing, or of another type.
    """
    utils.validate(body, version, strict=True)

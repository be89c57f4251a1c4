"""huggingface_hub as it is used here: it says who asks and no more, and whether to ask is decided here."""

from __future__ import annotations

from types import ModuleType


def hub_client() -> ModuleType:
    """Return huggingface_hub; its telemetry, which tells of other packages, is off in this process.

    So is its own reading of HF_HUB_OFFLINE, which knows this process's environment and no plan's.
    """
    import huggingface_hub
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_TELEMETRY = True
    constants.HF_HUB_OFFLINE = False
    return huggingface_hub


def named() -> dict[str, str]:
    """Return who asks, as huggingface_hub's functions take it."""
    from madlite import __version__

    return {"library_name": "madlite", "library_version": __version__}

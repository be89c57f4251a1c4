"""Finds what comes with madlite: the bundled models.json and the templates."""

from __future__ import annotations

from pathlib import Path

from madlite.errors import CatalogError

_PACKAGE = Path(__file__).parent


def bundled_models(home: Path | None) -> Path:
    """Return the models.json that comes with madlite; `home` is $MADLITE_HOME, which comes before every other place.

    Raises:
        CatalogError: it is not there.
    """
    return _find("models.json", home)


def template_root(home: Path | None) -> Path:
    """Return the folder of templates that comes with madlite; `home` is $MADLITE_HOME, as above.

    Raises:
        CatalogError: it is not there.
    """
    return _find("templates", home)


def _find(name: str, home: Path | None) -> Path:
    # A wheel carries them as package data; an editable install leaves them where the checkout has them.
    places = [home] if home else [_PACKAGE / "data", _PACKAGE.parent]
    for place in places:
        if (place / name).exists():
            return place / name
    if home:
        raise CatalogError(
            f"MADLITE_HOME={home} holds no {name}", "unset MADLITE_HOME, or put models.json and templates/ there"
        )
    raise CatalogError(
        f"madlite's own {name} is in none of {', '.join(map(str, places))}", "pip install --force-reinstall madlite"
    )

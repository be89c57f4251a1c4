"""Print the folder of torchtune's recipes, as `tune run` would find it, without importing torchtune.

    python3 find_recipes.py [FILE …] [RECIPE.py=KEY …]

A tree that $TORCHTUNE_ROOT names comes first, then /workspace/torchtune of ROCm's images, then the installed package,
beside which PyPI's wheel puts its recipes.  Ends with a message where a FILE is not in that folder, where a
RECIPE does not read a KEY of its configuration (torchtune takes any key without a word, so that a run would train in
BF16 and be called FP8), or where the package would not start with the torchao that is installed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
from pathlib import Path

IMAGE = "/workspace/torchtune"


def find_tree() -> Path | None:
    """Return a source tree's recipes, None where there is no tree."""
    named = os.environ.get("TORCHTUNE_ROOT")
    if named and not Path(named, "recipes").is_dir():
        sys.exit(f"madlite: TORCHTUNE_ROOT names {named}, which has no recipes")
    folder = Path(IMAGE if named is None else named, "recipes")
    return folder if named != "" and folder.is_dir() else None


def find_package() -> Path:
    """Return the recipes beside the installed package."""
    spec = importlib.util.find_spec("torchtune")
    folders = [Path(folder).parent / "recipes" for folder in (spec.submodule_search_locations or ())] if spec else []
    found = next((folder for folder in folders if folder.is_dir()), None)
    if found is None:
        sys.exit("madlite: torchtune is not installed here: pip install torchtune==0.6.1 torchao==0.14.1")
    return found


def check_torchao() -> None:
    """End the run where torchtune 0.6 from PyPI would fail to import what torchao 0.16 no longer has."""
    try:
        ours, theirs = importlib.metadata.version("torchtune"), importlib.metadata.version("torchao")
    except importlib.metadata.PackageNotFoundError as error:
        sys.exit(f"madlite: {error.name} is not installed here: pip install torchtune==0.6.1 torchao==0.14.1")
    number = re.match(r"0\.(\d{1,3})\b", theirs)
    if ours.startswith("0.6") and (number is None or int(number[1]) > 15):
        sys.exit(f"madlite: torchtune {ours} does not start with torchao {theirs}: pip install torchao==0.14.1")


def reads(recipe: Path, key: str) -> bool:
    """Say whether a recipe's source asks its configuration for a key: cfg.get("KEY", …), cfg["KEY"] or cfg.KEY."""
    source = recipe.read_text(encoding="utf-8", errors="replace")
    return re.search(rf"""(["']){re.escape(key)}\1|\bcfg\.{re.escape(key)}\b""", source) is not None


def main() -> None:
    """Print the folder."""
    folder = find_tree()
    if folder is None:
        folder = find_package()
        check_torchao()
    for argument in sys.argv[1:]:
        name, _, key = argument.partition("=")
        if not (folder / name).is_file():
            near = sorted(path.name for path in (folder / name).parent.glob("*.yaml"))
            sys.exit(f"madlite: torchtune in {folder.parent} has no {name}; there: {', '.join(near) or 'none'}")
        if key and not reads(folder / name, key):
            sys.exit(f"madlite: torchtune in {folder.parent} has a {name} that does not know {key}")
    print(folder)  # noqa: T201 - what the caller reads


if __name__ == "__main__":
    main()

"""Small MAD checkouts, written into a test's own folder."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

MINIMAD = Path(__file__).parents[1] / "data" / "minimad"


def card(name: str, *tags: str, **fields: object) -> dict[str, object]:
    return {"name": name, "dockerfile": "docker/a", "scripts": "scripts/a/run.sh", "tags": list(tags), **fields}


def write_cards(file: Path, *cards: dict[str, object]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(cards))
    return file


def write_program(root: Path, folder: str, code: str) -> Path:
    file = root / "scripts" / folder / "get_models_json.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dedent(code))
    return file

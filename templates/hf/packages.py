"""Say what a run needs that is not installed, in a sentence each, before anything starts.

python3 packages.py train.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

OLDEST = {"gpt_oss": (4, 55)}  # of transformers, for an architecture


def missing(values: dict[str, Any]) -> Iterator[str]:
    """Yield what is missing."""
    needs = {"transformers": "a training", "accelerate": "a training"}
    if values["method"] != "full":
        needs["peft"] = "LoRA"
    if values["method"] == "qlora":
        needs["bitsandbytes"] = "QLoRA"
    if values["strategy"] == "deepspeed":
        needs["deepspeed"] = "strategy deepspeed"
    if values["precision"] == "FP8":
        needs["transformer_engine"] = "FP8"
    for name, what in needs.items():
        if find_spec(name) is None:
            yield f"{what} needs {name.replace('_', '-')}, which is not installed for {sys.executable}"
    oldest = OLDEST.get(values["architecture"])
    if oldest and find_spec("transformers") and (have := installed("transformers")) and have < oldest:
        yield f"{values['architecture']} needs transformers {'.'.join(map(str, oldest))} or later"


def installed(name: str) -> tuple[int, ...]:
    """Return the first two numbers of a package's version; none where they are not known."""
    try:
        return tuple(int(part) for part in version(name).split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return ()


if __name__ == "__main__":
    told = [f"madlite: {words}" for words in missing(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))]
    if told:
        raise SystemExit("\n".join(told))

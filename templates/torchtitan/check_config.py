"""Stop before the start where torchtitan does not know a key of train.toml.

Versions before 0.2 train on without a word, with their own default in place of the key that they do not know.
torchtitan is read, not imported: that takes no time.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

# a key that only one era knows, newest first
ERAS = (("debug.seed", "0.2"), ("compile.enable", "0.2.0"), ("training.local_batch_size", "0.1"), ("", "0.0"))


def find_source() -> str:
    """Return the module that defines torchtitan's configuration, nothing where there is none to be found."""
    spec = importlib.util.find_spec("torchtitan")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    files = (folder / name for folder in folders for name in ("config/job_config.py", "config_manager.py"))
    return next((file.read_text(encoding="utf-8") for file in files if file.is_file()), "")


def known_keys(source: str) -> set[str]:
    """Return the keys that a configuration of dataclasses has, or an older one's options, as `section.key`."""
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    if "JobConfig" in classes and any(fields(classes["JobConfig"])):
        return set(walk("JobConfig", classes))
    texts = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return {text[2:] for text in texts if isinstance(text, str) and text.startswith("--")}


def fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the names of a dataclass's fields with their types."""
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            yield line.target.id, ast.unparse(line.annotation)


def walk(name: str, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    """Yield the dotted keys of a class and of those that its fields are of."""
    for key, kind in fields(classes[name]):
        if kind in classes:
            yield from (f"{key}.{below}" for below in walk(kind, classes))
        else:
            yield key


def dotted(table: dict[str, object], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of a TOML table."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def main() -> None:
    """Compare the file named first with what torchtitan here knows, and say which era that is."""
    known = known_keys(find_source())
    asked = dotted(tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    if known and (unknown := [key for key in asked if key not in known]):
        era = next(era for key, era in ERAS if key in known or not key)
        sys.exit(f"madlite: torchtitan here does not know {', '.join(unknown)}: it is of era {era} (--set era={era})")


if __name__ == "__main__":
    main()

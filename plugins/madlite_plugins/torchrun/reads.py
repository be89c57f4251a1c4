"""Which of madlite's variables a script reads: what it does not read, no option of a run can change.

Looked for in text, the script's own and that of the modules beside it that it imports: nothing is run or imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import reduce
from operator import or_
from pathlib import Path
from typing import NamedTuple

from madlite import RunPlan
from madlite_plugins.torchrun.places import is_file
from madlite_plugins.torchrun.variables import Named, named_in, parsed


class Sample(NamedTuple):
    """A script that comes along: which of WORDS it reads, and the precisions that it knows."""

    reads: frozenset[str]
    precisions: tuple[str, ...]


SAMPLES = {
    "{folder}/train_ddp.py": Sample(
        frozenset({"precision", "strategy", "seq_len", "micro_batch", "steps", "checkpoint"}), ("BF16", "FP32")
    ),
    "{folder}/megatron_deepspeed.py": Sample(
        frozenset({"precision", "seq_len", "micro_batch", "global_batch", "steps"}), ("FP16", "BF16")
    ),
}
"""By what a recipe calls them."""
WORDS = ("mode", "precision", "seq_len", "micro_batch", "global_batch", "steps", "strategy", "checkpoint")
"""What a script is given as `$MADLITE_<NAME>`, of what a user can ask of it."""
_FILES, _BYTES = 200, 1 << 20  # modules that are looked into, and how much of each


def read_words(plan: RunPlan) -> frozenset[str] | None:
    """Return which of WORDS the script reads; None where its text is not here to be seen."""
    script = str(plan.settings["script"])
    if script in SAMPLES:
        return SAMPLES[script].reads
    begin = _module_file(plan, script[3:].strip()) if script.startswith("-m ") else _file(plan, script)
    if begin is None:
        return None
    named = reduce(or_, _named(begin, _roots(plan, begin)), Named())
    return frozenset(word for word in WORDS if named.has(word.upper()))


def _named(begin: Path, roots: tuple[Path, ...]) -> Iterator[Named]:
    """Yield what a file requests, and the modules in the roots' folders that it imports, and these import."""
    left, visited = [begin], set[Path]()
    while left and len(visited) < _FILES:
        file = left.pop()
        if file in visited:
            continue
        visited.add(file)
        try:
            with file.open("rb") as stream:
                text = stream.read(_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        tree = parsed(text, file.suffix)
        yield named_in(text, tree)
        if tree is not None:
            left += [found for name in _imports(tree) for found in _modules(name, (file.parent, *roots))]


def _imports(tree: ast.Module) -> Iterator[str]:
    """Yield the names of modules that a program may import, with dots in between."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            begin = node.module or ""
            yield begin
            yield from (f"{begin}.{alias.name}".strip(".") for alias in node.names)


def _modules(name: str, roots: tuple[Path, ...]) -> Iterator[Path]:
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return
    for root in roots:
        path = root.joinpath(*parts)
        yield from (file for file in (path.with_suffix(".py"), path / "__init__.py") if is_file(file))


def _roots(plan: RunPlan, begin: Path) -> tuple[Path, ...]:
    stated = [plan.workspace / folder for folder in str(plan.env.get("PYTHONPATH", "")).split(":") if folder]
    return (begin.parent, plan.workspace / str(plan.settings["cwd"]), plan.workspace, *stated)


def _file(plan: RunPlan, script: str) -> Path | None:
    """Return a script's file where it is on this machine: an absolute path in a container is not."""
    if script.startswith("/") and plan.traits.containerised:
        return None
    file = plan.workspace / script
    return file if is_file(file) else None


def _module_file(plan: RunPlan, name: str) -> Path | None:
    parts = name.split(".")
    for root in _roots(plan, plan.workspace / str(plan.settings["cwd"]) / "x"):
        path = root.joinpath(*parts)
        for file in (path.with_suffix(".py"), path / "__main__.py"):
            if is_file(file):
                return file
    return None

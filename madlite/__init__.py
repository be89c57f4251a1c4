"""madlite: from a MAD tag to a trusted row of perf.csv.  Plugins import nothing but these public names.

They are listed in `__init__.pyi`, and imported when they are first used, so that `madlite --help` stays quick.
"""

from __future__ import annotations

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    import re
    from importlib import import_module
    from pathlib import Path

    stub = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    homes = {found: home for home, found in re.findall(r"^from (\S+) import (\w+)", stub, re.MULTILINE)}
    if name == "__all__":
        return [*homes, "__version__"]
    if name not in homes:
        raise AttributeError(f"module 'madlite' has no attribute {name!r}")
    for found in (found for found, home in homes.items() if home == homes[name]):
        globals()[found] = getattr(import_module(homes[name]), found)
    return globals()[name]

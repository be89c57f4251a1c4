r"""Text with spaces, quotes, `$()`, newlines and a leading dash stays one word of a script, one value of a file.

A plan is rendered with an odd text in its text settings, args and variables.  How a quote in it is written shows which
filter wrote it, if any: `sh` writes ' as '"'"', `toml` and `tojson` write the end of a line as \n.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from msgspec.structs import replace

from madlite.errors import MadliteError
from madlite.plan.render import render
from madlite.testing.flaws import Defect, answered
from madlite.testing.plans import Made, expand, plan_of
from madlite.testing.scripts import parsed
from madlite.testing.subject import Subject

ARGS, PYTHON = "args", "env.MADLITE_PYTHON"
AS_WORD = "give it to the program as a word of its own, which the code reads: python3 - {{ value | sh }} <<'END'"
HINT = "write each value through the filter sh in a script, through toml or tojson in a file"
_CHOOSING = ("recipe", "release", "recipe_device", "mode", "precision")  # these words choose, and refuse others
_CANARY = "$(kit_canary)"
_ODD = f"-x  'one two' \"three\" {_CANARY} `kit_canary` ; \\ * # \u00fc\u4e2d\nz'{_CANARY}'\n-y"
_QUOTED_DOCUMENT = re.compile(r"<<-?[ \t]*['\"\\](\w+)[^\n]*\n(.*?)^\t*\1$", re.DOTALL | re.MULTILINE)
_FLAWS_OF_SCRIPT = tuple(
    (re.compile(pattern, re.MULTILINE), what)
    for pattern, what in (
        (r"z'\$\(kit", "an odd value is not quoted in {}: a part of it could be run as a command"),
        (r"""\b(?:bash|sh|python[\d.]*) -c '[^']*-x  '"'"'one""", "it is a part of code that a program of {} reads"),
        (r'="-x  \\u0027one', "an odd value is in double quotes in {}: a part of it would be run as a command"),
        (r"""^[^"'\n]*(?:"[^"\n]*"[^"'\n]*)*[\s=]"'-x  '"'"'one""", "an odd value is quoted twice in {}"),
    )
)


def check_quoting(subject: Subject) -> Iterator[Defect]:
    """Yield values that break out of a word or a file, of some plans."""
    seen: set[str] = set()
    for made in subject.spread(subject.examples):
        for key in text_keys(made):
            for what, hint in _of_key(subject, made, key) if key not in seen else ():
                seen.add(key)
                yield f"{name_of(key)} of {made.case}", what, hint


def text_keys(made: Made) -> Iterator[str]:
    """Yield what has text that a user may choose, as --set names it."""
    if not made.files:
        return
    for key, value in made.plan.settings.items():
        if isinstance(value, str) and key not in _CHOOSING:
            yield key
    if made.plan.variant:
        yield "model"
    yield from (ARGS, *(f"env.{name}" for name in made.spec.env), PYTHON)


def name_of(key: str) -> str:
    """Return how a flaw names one of `text_keys`."""
    return key if key == ARGS else f"variable {key[4:]}" if key.startswith("env.") else f"setting {key}"


def files_with(subject: Subject, made: Made, values: Mapping[str, str]) -> dict[str, bytes] | None:
    """Return the files of a plan with other values; None where the backend, its check or a key's type takes them not.

    Raises:
        UsageProblem: a template does not.
    """
    case = made.case
    card = replace(case.card, args=f"--{ARGS} {shlex.quote(values[ARGS])}") if ARGS in values else case.card
    sets = tuple((key, value) for key, value in values.items() if key != ARGS)
    case = replace(case, card=card, asked=(*case.asked, *sets))
    try:
        specs = expand(subject.backend, case)
        spec = next((run_spec for run_spec in specs if run_spec.templates == made.spec.templates), specs[0])
        plan = plan_of(subject.backend, case, spec)
    except MadliteError:
        return None
    if any(finding.fatal for finding in answered(subject.backend.check, plan)):
        return None
    return {file.path: file.data for file in render(plan, subject.search)}


def _of_key(subject: Subject, made: Made, key: str) -> Iterator[tuple[str, str]]:
    """Yield what becomes of an odd value, and what to do; at most one thing."""
    try:
        plain = files_with(subject, made, {key: _letters(_ODD)})
        odd = files_with(subject, made, {key: _ODD}) if plain is not None else None
    except MadliteError as error:
        yield f"an odd value breaks a template: {error.message}", HINT
        return
    for path, data in (odd or {}).items():
        if what := _in_script(path, data) if path.endswith(".sh") else _in_file(path, (plain or {})[path], data):
            yield what, AS_WORD if what.startswith("it ") else HINT
            return


def _in_script(path: str, data: bytes) -> str:
    """Return how an odd value stands in a script where it could break out, "" where it does not."""
    text = data.decode("utf-8", "surrogateescape")
    if any("\nz'" in document[2] for document in _QUOTED_DOCUMENT.finditer(text)):
        return f"it stands in a here-document of {path}, which a line of it could end"
    text = _QUOTED_DOCUMENT.sub("", text)
    return next((what.format(path) for pattern, what in _FLAWS_OF_SCRIPT if pattern.search(text)), "")


def _in_file(path: str, plain: bytes, odd: bytes) -> str:
    """Return how an odd value changes what a TOML, JSON or YAML file holds, "" where it does not."""
    if PurePosixPath(path).suffix not in (".json", ".toml", ".yaml", ".yml"):
        return ""
    try:
        before, after = (json.dumps(parsed(path, data), default=str) for data in (plain, odd))
    except ValueError as error:
        return f"an odd value changes {path}: {error}"
    return "" if _letters(before) == _letters(after) else f"an odd value changes {path}: {after!r:.160}"


def _letters(text: str) -> str:
    """Return the letters and digits of a text, which are the same however it is quoted."""
    return re.sub(r"\\u[0-9a-f]{4}|\\n|[^a-z0-9]", "", text.casefold())

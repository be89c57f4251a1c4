r"""What a backend plans: well-formed files and scripts, quoted values, pure answers without secrets, true rows.

Of quoting: text with spaces, quotes, `$()`, newlines and a leading dash stays one word of a script, one value of a
file.  A plan is rendered with an odd text in its text settings, args and variables.  How a quote in it is written
shows which filter wrote it, if any: `sh` writes ' as '"'"', `toml` and `tojson` write the end of a line as \n.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from madlite.backends.step_lines import StepPattern
from madlite.errors import MadliteError, UsageProblem
from madlite.model import Quantity, Step
from madlite.plan.plan_file import render
from madlite.process import capture
from madlite.run.planning import refuse_without_effect
from madlite.secrets import Redactor
from madlite.testing.flaws import Defect, answered, attempt
from madlite.testing.subject import Made, Subject, request_of

# loops over one word, code behind an exit, variables of a branch that is not here: written for other values
_RENDERED = "SC2034,SC2043,SC2317"
_NUMBER = re.compile(rb"\d+")
_NO_SHELLCHECK = "pip install 'madlite[testing]', or your system's package shellcheck"


def check_rendering(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield cases that cannot be planned or rendered, and cards that no machine has a run for."""
    made, defects, refused = subject.planned
    yield from (*subject.wrong, *defects)
    planned = {plan.case.card.name for plan in made} | {where.split()[1] for where, _, _ in defects}
    never = {case.card.name for case in refused} & {card.name for card in subject.cards} - planned
    for name in sorted(never) if subject.most is None else ():  # of a sample what it has a run for may be left out
        hint = 'drop the card, or give it what has to be requested: {"recipe": {"mode": …}}'
        yield f"card {name}", "the backend refuses it on every machine", hint
    if not subject.wrong and not (subject.cards and (made or defects or never)):
        hint = 'name cards that have plans: cards = [{"name": …, "backend": …}], or the path of a models.json'
        yield f"backend {subject.name}", "there is no card to plan for", hint
    for data, (path, case) in {file.data: (file.path, plan.case) for plan in made for file in plan.files}.items():
        if error := attempt(parsed, path, data)[1]:
            yield f"{path} of {case}", f"it cannot be read: {error}", "write values through the filter toml or tojson"


def parsed(path: str, data: bytes) -> object:
    """Return what a file of the run folder holds, as text where it is of no kind that is known.

    Raises:
        Exception: it is not of the kind that its name says; ValueError of JSON and TOML.
    """
    suffix = PurePosixPath(path).suffix
    text = data.decode("utf-8", "surrogateescape")
    if suffix == ".json":
        return json.loads(text)
    if suffix == ".toml":
        import tomli

        return tomli.loads(text)
    if suffix in (".yaml", ".yml"):
        import yaml

        # ten times as quick, where libyaml is
        return list(yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    return text


def check_scripts(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield what shellcheck reports about every script; `folder` is where they are written to be inspected."""
    if (shellcheck := find_shellcheck()) is None:
        yield "this machine", "there is no shellcheck to check scripts with", _NO_SHELLCHECK
        return
    written = dict(write_scripts(subject.made, folder))
    command = [shellcheck, "--shell=bash", "--format=json", f"--exclude={_RENDERED}", *written]
    ran = capture(command if written else ["echo", "[]"], limit_s=120.0)
    comments, error = attempt(json.loads, ran.stdout)
    if error:
        yield "this machine", f"shellcheck failed: {ran.stderr.strip()[:200]}", _NO_SHELLCHECK
    for comment in {comment["message"]: comment for comment in reversed(comments or ())}.values():
        where = f"{written[comment['file']]}, line {comment['line']}"  # the first script with a template's fault
        yield where, f"shellcheck: {comment['message']}", f"https://www.shellcheck.net/wiki/SC{comment['code']}"


def find_shellcheck() -> str | None:
    """Return where shellcheck is: on PATH, or beside this Python, where its package puts it."""
    return shutil.which("shellcheck") or shutil.which("shellcheck", path=Path(sys.executable).parent)


def write_scripts(made: Sequence[Made], folder: Path) -> Iterator[tuple[str, str]]:
    """Write each script that has a line like none before; yield its path and whose it is.

    Names and numbers, by which those of different cards differ, make no other line.
    """
    seen: set[bytes] = set()
    for one in made:
        for file in one.files:
            lines = set(_NUMBER.sub(b"0", file.data.replace(one.plan.card.name.encode(), b"")).splitlines())
            if file.path.endswith(".sh") and not lines <= seen:
                seen |= lines
                path = folder / f"{len(seen)}.sh"
                path.write_bytes(file.data)
                yield str(path), f"{file.path} of {one.case}"


ARGS, PYTHON = "args", "env.MADLITE_PYTHON"
AS_WORD = "give it to the program as a word of its own, which the code reads: python3 - {{ value | sh }} <<'END'"
HINT = "write each value through the filter sh in a script, through toml or tojson in a file"
_CHOOSING = ("recipe", "release", "recipe_device", "mode", "precision")  # these words choose, and refuse others
_CANARY = "$(kit_canary)"
_ODD = f"-x  'one two' \"three\" {_CANARY} `kit_canary` ; \\ * # \u00fc\u4e2d\nz'{_CANARY}'\n-y"
_QUOTED_DOCUMENT = re.compile(r"(?<!<)<<-?[ \t]*['\"\\]([^\s'\"]+)[^\n]*\n(.*?)^\t*\1$", re.DOTALL | re.MULTILINE)
_FLAWS_OF_SCRIPT = tuple(
    (re.compile(pattern, re.MULTILINE), what)
    for pattern, what in (
        (r"z'\$\(kit", "an odd value is not quoted in {}: a part of it could be run as a command"),
        (r"""\b(?:bash|sh|python[\d.]*) -c '[^']*-x  '"'"'one""", "it is a part of code that a program of {} reads"),
        (r'="-x  \\u0027one', "an odd value is in double quotes in {}: a part of it would be run as a command"),
        (r"""^[^"'\n]*(?:"[^"\n]*"[^"'\n]*)*[\s=]"'-x  '"'"'one""", "an odd value is quoted twice in {}"),
    )
)


def check_quoting(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield values that break out of a word or a file, of some plans."""
    seen: set[str] = set()
    for made in subject.spread(subject.examples):
        for key in text_keys(made):
            for what, hint in _of_key(subject, made, key) if key not in seen else ():
                seen.add(key)
                yield f"{name_of(key)} of {made.case}", what, hint


def text_keys(made: Made) -> Iterator[str]:
    """Yield what has text that a user may choose, as --set names it."""
    if made.files:
        texts = (key for key, value in made.plan.settings.items() if isinstance(value, str) and key not in _CHOOSING)
        model = ("model",) if made.plan.variant else ()
        yield from (*texts, *model, ARGS, *(f"env.{name}" for name in made.spec.env), PYTHON)


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
        specs = subject.expand(case)
        plan = subject.plan(case, next((spec for spec in specs if spec.templates == made.spec.templates), specs[0]))
    except MadliteError:
        return None
    return None if subject.is_refused(plan) else {file.path: file.data for file in render(plan, subject.search)}


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
    except Exception as error:  # noqa: BLE001 - whatever a parser of such files raises
        return f"an odd value changes {path}: {' '.join(str(error).split())}"
    return "" if _letters(before) == _letters(after) else f"an odd value changes {path}: {after!r:.160}"


def _letters(text: str) -> str:
    """Return the letters and digits of a text, which are the same however it is quoted."""
    return re.sub(r"\\u[0-9a-f]{4}|\\n|[^a-z0-9]", "", text.casefold())


# Planning is pure: the same answer twice, nothing done to the world or to what was given, no secret told.

_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MAD_SECRETS_HFTOKEN", "MAD_SECRETS_KIT")
SECRETS = {name: f"kit-secret/{number}&0123456789abcdef" for number, name in enumerate(_TOKENS)}

ONE_ANSWER = "no clock, no chance, no order of a set, and fresh tables in each answer"


def check_purity(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield where expand, check and assets change what they are given, or answer otherwise a second time."""
    for made in subject.spread(8):
        questions = ("expand", request_of(made.case), made.case.machine), ("check", made.plan), ("assets", made.plan)
        for member, *given in questions:
            before = deepcopy(given)
            first = deepcopy(_answer(call := getattr(subject.backend, member), given))
            if given != before:
                yield (
                    f"{member} of {made.case}",
                    "it changes what it was given",
                    "change a copy: msgspec.structs.replace",
                )
            if _answer(call, before) != first:
                yield f"{member} of {made.case}", "the same question had two answers", ONE_ANSWER


def _answer(call: Callable[..., Any], given: Iterable[Any]) -> Any:
    try:
        return answered(call, *given)
    except UsageProblem as problem:
        return (problem.message, problem.hint)


def check_secrets(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield where a secret of the environment shows."""
    for made in subject.spread(subject.examples):
        with patch.dict(os.environ, SECRETS):  # for code that searches for them where it should not
            texts = list(_texts(subject, made))
        for where, text in texts:
            for name, value in SECRETS.items():
                if Redactor([value]).text(text) != Redactor().text(text):
                    yield where, f"it holds the value of ${name}", "leave it in the environment: the script has it"


def _texts(subject: Subject, made: Made) -> Iterator[tuple[str, str]]:
    """Yield what a backend answers, and whose words it is."""
    try:
        plans = subject.runs(replace(made.case, environ=SECRETS))
    except MadliteError as problem:
        yield f"refusal of {made.case}", f"{problem.message} {problem.hint}"
        return
    for plan in plans:
        yield f"RunSpec of {made.case}", repr(plan.spec)
        yield from ((f"{file.path} of {made.case}", file.data.decode("utf-8", "replace")) for file in plan.files)
        findings = [*answered(subject.backend.check, plan.plan), *answered(subject.backend.assets, plan.plan)]
        yield f"findings and assets of {made.case}", repr(findings)


# What a row says is what ran and what the reader gives: metrics of the result rule, modes and precisions.

REFUSE_IT = "refuse it: a TemplateBackend does where its variants have one, others by a fatal Finding of check(plan)"


def check_results(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield quantities of the result rule that no reader of the backend ever gives."""
    pattern = getattr(subject.backend, "step", None)
    steps = [event.values for found in subject.events.values() for event in found if isinstance(event, Step)]
    given = {*(pattern.quantities if isinstance(pattern, StepPattern) else ()), *chain.from_iterable(steps)}
    for rule in {repr(made.spec.result_rule): made.spec.result_rule for made in subject.made}.values():
        wanted = {rule.headline_metric: rule.headline, **({"loss": Quantity.LOSS} if rule.loss_expected else {})}
        wanted |= {metric.metric: metric.quantity for metric in rule.mad if metric.quantity} if subject.logs else {}
        for name, quantity in wanted.items() if given and rule.kind == "steps" else ():
            if quantity not in given:
                hint = "add what has it to `logs`, or let the reader give it, or drop it from the ResultRule"
                yield f"metric {name}", f"no step of the logs has {quantity.label}", hint


def check_effects(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield words of mode and precision that a row would have, and that no run of the backend knows."""
    for made in subject.spread(subject.examples):
        for key, word in (("mode", "no_such_mode"), ("precision", "NO_SUCH_PRECISION")):
            if made.plan.variant is not None and runs_of(subject, made, key, word):
                yield str(made.case), f"it takes {key} '{word}', which the row would have", REFUSE_IT


def runs_of(subject: Subject, made: Made, key: str, word: str) -> list[Made]:
    """Return the runs of a word that neither a check of the backend nor madlite itself refuses."""
    try:
        runs = subject.runs(replace(made.case, asked=(*made.case.asked, (key, word))))
    except UsageProblem:
        return []
    return [run for run in runs if not subject.is_refused(run.plan) and _has_effect(subject, run)]


def _has_effect(subject: Subject, made: Made) -> bool:
    again, files = partial(subject.expand, made.case), partial(render, search=subject.search)
    return not attempt(refuse_without_effect, request_of(made.case), made.spec, made.plan, made.files, again, files)[1]


CHECKS = (check_rendering, check_scripts, check_quoting, check_purity, check_secrets, check_results, check_effects)

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from madlite.backends.step_lines import StepPattern
from madlite.errors import MadliteError, UsageProblem
from madlite.model import Quantity, ResultRule, RunSpec, Step, Summary
from madlite.plan.plan_file import render, run_content
from madlite.process import capture
from madlite.run.planning import refuse_without_effect
from madlite.secrets import Redactor
from madlite.testing.flaws import Defect, answered
from madlite.testing.subject import Made, Subject, expand, is_refused, plan_of, request_of

_LIMIT_S = 120.0
# loops over one word, code behind an exit, variables of a branch that is not here: written for other values
_RENDERED = "SC2034,SC2043,SC2317"
_NUMBER = re.compile(rb"\d+")
_NO_SHELLCHECK = "pip install 'madlite[testing]', or your system's package shellcheck"


def check_rendering(subject: Subject) -> Iterator[Defect]:
    """Yield cases that cannot be planned or rendered, and cards that no machine has a run for."""
    made, defects, refused = subject.planned
    yield from (*subject.wrong, *defects)
    if not subject.cards and not subject.wrong:
        hint = 'name cards: cards = [{"name": …, "backend": …}], or the path of a models.json'
        yield f"backend {subject.name}", "there is no card to plan for", hint
    planned = {plan.case.card.name for plan in made} | {where.split()[1] for where, _, _ in defects}
    never = {case.card.name for case in refused} & {card.name for card in subject.cards} - planned
    for name in sorted(never) if subject.most is None else ():  # of a sample what it has a run for may be left out
        hint = "drop the card, or name with `asks` what has to be requested"
        yield f"card {name}", "the backend refuses it on every machine", hint
    seen: set[bytes] = set()
    for plan in made:
        for file in plan.files:
            if file.data in seen:
                continue
            seen.add(file.data)
            try:
                parsed(file.path, file.data)
            except ValueError as error:
                hint = "write values through the filter toml or tojson"
                yield f"{file.path} of {plan.case}", f"it cannot be read: {error}", hint


def parsed(path: str, data: bytes) -> object:
    """Return what a file of the run folder holds, as text where it is of no kind that is known.

    Raises:
        ValueError: it is not of the kind that its name says.
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

        try:
            return list(yaml.safe_load_all(text))
        except yaml.YAMLError as error:
            raise ValueError(" ".join(str(error).split())) from None
    return text


def check_scripts(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield what bash and shellcheck report about every script; `folder` is where they are written to be inspected."""
    bash, shellcheck = shutil.which("bash"), find_shellcheck()
    if bash is None:
        yield "this machine", "there is no bash to check scripts with", "install bash, which every run needs"
        return
    written = dict(_written(subject.made, folder))
    for path, where in written.items():
        ran = capture([bash, "-n", path], limit_s=_LIMIT_S)
        if not ran.ok:
            yield where, f"bash: {(ran.stderr.strip().splitlines() or ['?'])[0].replace(path, 'it')}", "see bash -n"
    if shellcheck is None:
        yield "this machine", "there is no shellcheck to check scripts with", _NO_SHELLCHECK
        return
    command = [shellcheck, "--shell=bash", "--format=json", f"--exclude={_RENDERED}", *written]
    ran = capture(command if written else ["echo", "[]"], limit_s=_LIMIT_S)
    try:
        comments = {comment["message"]: comment for comment in reversed(json.loads(ran.stdout))}
    except ValueError:
        yield "this machine", f"shellcheck failed: {ran.stderr.strip()[:200]}", _NO_SHELLCHECK
        return
    for message, comment in comments.items():  # one template has the same fault in every script
        where = f"{written[comment['file']]}, line {comment['line']}"
        yield where, f"shellcheck: {message}", f"https://www.shellcheck.net/wiki/SC{comment['code']}"


def find_shellcheck() -> str | None:
    """Return where shellcheck is: on PATH, or beside this Python, where its package puts it."""
    beside = Path(sys.executable).with_name("shellcheck")
    return shutil.which("shellcheck") or (str(beside) if beside.is_file() else None)


def _written(made: Sequence[Made], folder: Path) -> Iterator[tuple[str, str]]:
    """Write each script that has a line like none before; yield its path and whose it is.

    Names and numbers, by which those of different cards differ, make no other line.
    """
    seen: set[bytes] = set()
    for plan in made:
        for file in plan.files:
            lines = set(_NUMBER.sub(b"0", file.data.replace(plan.plan.card.name.encode(), b"")).splitlines())
            if PurePosixPath(file.path).suffix != ".sh" or lines <= seen:
                continue
            seen |= lines
            path = folder / f"{len(seen)}.sh"
            path.write_bytes(file.data)
            yield str(path), f"{file.path} of {plan.case}"


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
    if is_refused(subject.backend, plan):
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


# Planning is pure: the same answer twice, nothing done to the world or to what was given, no secret told.

SECRETS = {
    name: f"kit-secret/{number}&0123456789abcdef"
    for number, name in enumerate(("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MAD_SECRETS_HFTOKEN", "MAD_SECRETS_KIT"))
}


def check_purity(subject: Subject) -> Iterator[Defect]:
    """Yield what expand, check and assets do beside answering, the first time they are called too."""
    for where, what in subject.done_at_first:
        yield where, f"it does something to the world: {what}", "planning only reads; do it in run.sh"
    for made in subject.spread(8):
        yield from _pure(subject, made, "expand", (request_of(made.case), made.case.machine))
        for member in ("check", "assets"):
            yield from _pure(subject, made, member, (made.plan,))


def _pure(subject: Subject, made: Made, member: str, given: tuple[Any, ...]) -> Iterator[Defect]:
    where = f"{member} of {made.case}"
    call = getattr(subject.backend, member)
    before = deepcopy(given)
    first = _answer(call, given)
    if given != before:
        yield where, "it changes what it was given", "make changed copies: msgspec.structs.replace"
    kept = deepcopy(first)
    tables = [table for spec in first if isinstance(spec, RunSpec) for table in (spec.settings, spec.env)]
    for table in tables:  # a backend that keeps them would give what is written there to the next run
        table["left_by_the_kit"] = "x"
    again = deepcopy(_answer(call, before))
    for table in tables:
        table.pop("left_by_the_kit", None)
    if again != kept:
        hint = "no clock, no chance, no order of a set, and fresh tables in each answer"
        yield where, "the same question had two answers", hint


def _answer(call: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    try:
        return answered(call, *given)
    except UsageProblem as problem:
        return (problem.message, problem.hint)


def check_secrets(subject: Subject) -> Iterator[Defect]:
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

_PRECISIONS = ("FP32", "BF16", "FP16", "FP8", "MXFP8", "MXFP4")
_REFUSE_IT = "refuse it: a TemplateBackend does where its variants have one, others by a fatal Finding of check(plan)"


def check_results(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield metrics that no reader of the backend ever gives; nothing where nothing shows what it gives.

    `folder` is where the files that a run leaves are copied to, for readers may ask whether they are of their run.
    """
    events = [event for found in subject.events.values() for event in found]
    for number, outputs in enumerate(subject.outputs):
        if outputs.is_dir():
            copy = Path(shutil.copytree(outputs, folder / str(number), copy_function=shutil.copyfile))
            events += answered(subject.backend.reader(None).finish, copy)
        else:
            yield f"outputs {outputs}", "there is no such folder", 'outputs = ["a folder of a run\'s files"]'
    quantities = {quantity for event in events if isinstance(event, Step) for quantity in event.values}
    if isinstance(pattern := getattr(subject.backend, "step", None), StepPattern):
        quantities |= set(pattern.quantities)
    keys = {key for event in events if isinstance(event, Summary) for key in event.values}
    for rule in {repr(made.spec.result_rule): made.spec.result_rule for made in subject.made}.values():
        if rule.kind == "steps" and quantities:
            yield from _missing(rule, quantities, keys, in_logs=bool(subject.logs))


def _missing(rule: ResultRule, quantities: set[Quantity], keys: set[str], *, in_logs: bool) -> Iterator[Defect]:
    hint = (
        "add what has it to `logs` (or `outputs`: a run's files), or let the reader give it, or drop it from the rule"
    )
    if rule.headline not in quantities:
        yield f"metric {rule.headline_metric}", f"no step of the logs has the headline, {rule.headline.label}", hint
    if rule.loss_expected and Quantity.LOSS not in quantities:
        what = "a loss is expected of every run, and no step of the logs has one"
        yield "result rule", what, "ResultRule(loss_expected=False)"
    for metric in rule.mad if in_logs else ():
        if metric.rule == "summary" and metric.key not in keys:
            yield f"metric {metric.metric}", f"no log has the figure {metric.key!r}", hint
        elif metric.quantity is not None and metric.quantity not in quantities:
            yield f"metric {metric.metric}", f"no step of the logs has {metric.quantity.label}", hint


def check_effects(subject: Subject) -> Iterator[Defect]:
    """Yield words of mode and precision that a row would have, and no run: unknown ones, and two of one run."""
    for made in subject.spread(subject.examples):
        if made.plan.variant is None:
            continue
        for key, word in (("mode", "no_such_mode"), ("precision", "NO_SUCH_PRECISION")):
            if _runs_of(subject, made, key, word):
                yield str(made.case), f"it takes {key} '{word}', which the row would have", _REFUSE_IT
        seen: list[tuple[str, tuple[object, ...]]] = []
        for word in _PRECISIONS:
            for run in _runs_of(subject, made, "precision", word):
                content = run_content(run.plan, run.files)
                if like := next((other for other, known in seen if other != word and known == content), ""):
                    yield str(made.case), f"precision {word} runs what precision {like} does", _REFUSE_IT
                seen.append((word, content))


def _runs_of(subject: Subject, made: Made, key: str, word: str) -> list[Made]:
    """Return the runs of a word that neither a check of the backend nor madlite itself refuses."""
    try:
        runs = subject.runs(replace(made.case, asked=(*made.case.asked, (key, word))))
    except UsageProblem:
        return []
    return [run for run in runs if not _is_refused(subject, run)]


def _is_refused(subject: Subject, made: Made) -> bool:
    if is_refused(subject.backend, made.plan):
        return True
    again, files = partial(expand, subject.backend, made.case), partial(render, search=subject.search)
    try:
        refuse_without_effect(request_of(made.case), made.spec, made.plan, made.files, again, files)
    except UsageProblem:
        return True
    return False

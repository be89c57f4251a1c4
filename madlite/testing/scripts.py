"""What is rendered: every file is well-formed, every script passes bash and shellcheck."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from madlite.process import capture
from madlite.testing.flaws import Defect
from madlite.testing.plans import Made
from madlite.testing.subject import Subject

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

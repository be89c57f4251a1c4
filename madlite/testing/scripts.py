"""What is rendered: every file is well-formed, every script passes bash and shellcheck."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from madlite.process import capture
from madlite.testing.flaws import Flaw
from madlite.testing.plans import Made
from madlite.testing.subject import Subject

_LIMIT_S = 120.0
# loops over one word, code behind an exit, variables of a branch that is not here: written for other values
_RENDERED = "SC2034,SC2043,SC2317"
_NUMBER = re.compile(rb"\d+")
_NO_SHELLCHECK = "pip install 'madlite[testing]', or your system's package shellcheck"


def check_rendering(subject: Subject) -> Iterator[Flaw]:
    """Yield cases that cannot be planned or rendered, and cards that no machine has a run for."""
    made, flaws, _ = subject.planned
    yield from (*subject.wrong, *flaws)
    if not subject.cards and not subject.wrong:
        hint = 'name cards: cards = [{"name": …, "backend": …}], or the path of a models.json'
        yield Flaw("rendering", f"backend {subject.name}", "there is no card to plan for", hint)
    if subject.most is None:  # else what it is not refused for may not be in the sample
        yield from _never(subject)
    seen: set[bytes] = set()
    for plan in made:
        yield from _broken_files(plan, seen)


def check_scripts(subject: Subject, folder: Path) -> Iterator[Flaw]:
    """Yield what bash and shellcheck report about every script; `folder` is where they are written to be inspected."""
    bash, shellcheck = shutil.which("bash"), find_shellcheck()
    if bash is None:
        hint = "install bash, which every run needs"
        yield Flaw("scripts", "this machine", "there is no bash to check scripts with", hint)
        return
    written = dict(_written(subject.made, folder))
    for path, where in written.items():
        ran = capture([bash, "-n", str(path)], limit_s=_LIMIT_S)
        if not ran.ok:
            yield Flaw("scripts", where, f"bash: {_first(ran.stderr, path)}", "see bash -n")
    if shellcheck is None:
        yield Flaw("scripts", "this machine", "there is no shellcheck to check scripts with", _NO_SHELLCHECK)
        return
    yield from _shellcheck(shellcheck, written) if written else ()


def find_shellcheck() -> str | None:
    """Return where shellcheck is: on PATH, or beside this Python, where its package puts it."""
    beside = Path(sys.executable).with_name("shellcheck")
    return shutil.which("shellcheck") or (str(beside) if beside.is_file() else None)


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


def _never(subject: Subject) -> Iterator[Flaw]:
    made, flaws, refused = subject.planned
    told = {plan.case.card.name for plan in made} | {flaw.where.split()[1] for flaw in flaws}
    given = {card.name for card in subject.cards}
    for name in sorted({case.card.name for case in refused} & given - told):
        hint = "drop the card, or name with `asks` what has to be requested"
        yield Flaw("rendering", f"card {name}", "the backend refuses it on every machine", hint)


def _broken_files(plan: Made, seen: set[bytes]) -> Iterator[Flaw]:
    for file in plan.files:
        if file.data in seen:
            continue
        seen.add(file.data)
        try:
            parsed(file.path, file.data)
        except ValueError as error:
            hint = "write values through the filter toml or tojson"
            yield Flaw("rendering", f"{file.path} of {plan.case}", f"it cannot be read: {error}", hint)


def _written(made: Sequence[Made], folder: Path) -> Iterator[tuple[Path, str]]:
    """Write each script that has a line like none before; yield its path and whose it is.

    Names and numbers, by which those of different cards differ, make no other line.
    """
    seen: set[bytes] = set()
    for plan in made:
        for file in plan.files:
            if PurePosixPath(file.path).suffix != ".sh":
                continue
            lines = set(_NUMBER.sub(b"0", file.data.replace(plan.plan.card.name.encode(), b"")).splitlines())
            if lines <= seen:
                continue
            seen |= lines
            path = folder / f"{len(seen)}.sh"
            path.write_bytes(file.data)
            yield path, f"{file.path} of {plan.case}"


def _shellcheck(tool: str, written: Mapping[Path, str]) -> Iterator[Flaw]:
    ran = capture(
        [tool, "--shell=bash", "--format=json", f"--exclude={_RENDERED}", *map(str, written)], limit_s=_LIMIT_S
    )
    try:
        told = json.loads(ran.stdout)
    except ValueError:
        yield Flaw("scripts", "this machine", f"shellcheck failed: {ran.stderr.strip()[:200]}", _NO_SHELLCHECK)
        return
    seen: set[str] = set()  # one template has the same fault in every script
    for one in told:
        if one["message"] not in seen:
            seen.add(one["message"])
            where = f"{written[Path(one['file'])]}, line {one['line']}"
            hint = f"https://www.shellcheck.net/wiki/SC{one['code']}"
            yield Flaw("scripts", where, f"shellcheck: {one['message']}", hint)


def _first(text: str, path: Path) -> str:
    return text.strip().splitlines()[0].replace(str(path), "it") if text.strip() else "it cannot be read"

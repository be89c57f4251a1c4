"""`madlite init` and `madlite plugin new`: the first files of who brings a training script or a backend."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import click

from madlite.backends.log_formats import USUAL_NAMES, step_format
from madlite.catalog.sources import template_root
from madlite.cli import setup
from madlite.cli.main import Group
from madlite.cli.options import Command, common_options
from madlite.cli.parse import page
from madlite.cli.terminal import echo, echo_lines, shell_line
from madlite.errors import UsageProblem
from madlite.files import exists, is_file, read_json, shown, write_named
from madlite.measure.parse_log import head_lines, open_log, read_chunks, read_log, step_pattern_of, take_head
from madlite.model import Json

_CARDS = Path("models.json")
_EXAMPLE = r"step (?P<n>\d+) loss (?P<loss>\S+) (?P<step_time_ms>\S+) ms"
_SPEEDS = "samples_per_s, step_time_s, step_time_ms, tokens_per_s_per_gpu, …"
_OF_SPEED = re.compile(r"through|speed|rate|tok|sampl|tps|time|_ms|dt")  # a key of JSON objects
_LONGEST = 4 << 20  # bytes of a line with JSON objects
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@click.command("init", cls=Command)
@click.argument("script", required=False, metavar="[SCRIPT]")
@click.option("--log", metavar="FILE", help="A log of it: finds the pattern of a step, and tries it.")
@click.option("--step", metavar="REGEX", help="How a step's line reads, as for madlite parse --step.")
@click.option("--keys", default="", metavar="KEY=NAME,…", help="What keys of the log's JSON objects count.")
@click.option("--name", metavar="NAME", help="The card's name.  [default: the script's]")
@click.option("--image", metavar="REF", help="The container image to run in.  [default: none, on the host]")
@click.option("--args", "script_args", default="", metavar="TEXT", help="Arguments of the script.")
@common_options
def command(
    script: str | None,
    log: str | None,
    step: str | None,
    keys: str,
    name: str | None,
    image: str | None,
    script_args: str,
    no_plugins: bool,
) -> int:
    """Write a card for a training script of your own into models.json of this folder.

    On a terminal it asks for what is not given.  The script is started by torchrun, one rank a GPU.

    \b
    madlite init train.py --log train.log
    madlite init train.py --step 'step (?P<n>\\d+) loss (?P<loss>\\S+) (?P<tokens_per_s>\\S+) tok/s'
    """
    script = script or _answer("Training script of this folder", "madlite init train.py --log train.log")
    _check_script(script)
    if not (log or step):
        how = f"madlite init {shlex.quote(script)} --log train.log   or --step REGEX"
        log = _answer("A log of it, or Enter to give the pattern of a step", how)
        step = None if log else _answer(f"The pattern, as {_EXAMPLE}", how)
    if keys and (step or not log):
        raise UsageProblem(f"--keys {keys}: it names keys of a log's JSON objects", "--log FILE, without --step")
    name = name or Path(script).stem
    cards = _cards_without(name)
    tried = _tried(Path(log), script, step, keys, no_plugins) if log else None
    recipe = tried or {"step": step_format(step or "").format.step[0]}
    card: dict[str, Json] = {"name": name, "backend": "torchrun", "n_gpus": "-1", "args": script_args, "tags": [name]}
    card |= {"image": image} if image else {}
    cards.append({**card, "recipe": {"script": script, **recipe}})
    write_named(_CARDS, json.dumps(cards, indent=2, ensure_ascii=False) + "\n")
    read_by = recipe.get("step", "the JSON objects of its log")
    echo(f"{_CARDS}: card {name} runs {script} by torchrun, and reads its steps by {read_by}")
    echo(f"next: {shell_line(('madlite', 'run', '--tags', name, '--dry-run'))}   shows it; without --dry-run it runs")
    return 0


def _answer(question: str, hint: str) -> str:
    if not sys.stdin.isatty():
        raise UsageProblem(f"{question}: not given, and there is no terminal to ask on", hint)
    return str(click.prompt(question, default="", show_default=False, err=True)).strip()


def _check_script(script: str) -> None:
    path = Path(script)
    if path.is_absolute() or ".." in path.parts:
        raise UsageProblem(f"{script} is not below this folder", f"cd {shlex.quote(str(path.parent))}, and init there")
    if not is_file(path):
        raise UsageProblem(f"{script}: no such file in this folder", "ls *.py")


def _cards_without(name: str) -> list[Json]:
    """Return the cards of this folder, none of which has this name yet."""
    if not _NAME.fullmatch(name):
        raise UsageProblem(f"--name {name!r} is no name of a card", "letters, digits, . _ and -")
    cards = read_json(_CARDS) if exists(_CARDS) else []
    if not isinstance(cards, list):
        raise UsageProblem(f"{_CARDS} is no list of cards", "docs/cards.md has the format")
    if any(isinstance(card, dict) and card.get("name") == name for card in cards):
        raise UsageProblem(f"{_CARDS} has a card {name}", "--name gives the new one another name")
    return cards


def _tried(log: Path, script: str, step: str | None, named: str, no_plugins: bool) -> dict[str, Json]:
    """Return how the log's steps are read, and print them: by that pattern, else one found, else JSON.

    `named` says of keys of its JSON objects what they count, as KEY=NAME; a terminal is asked for the one of the speed.
    """
    called, plugins, names = shown(log), setup.load(no_plugins), _names(named)
    with open_log(log) as file:
        lines = head_lines(take_head(read_chunks(file, called)))
    found = step or (None if named else step_pattern_of(lines))
    keys = [] if step else _json_keys(lines)
    json_reader = plugins.backends().get("torchrun", (None,))[0] if keys else None
    ways = [way for way in (found and step_format(found), json_reader) if way]
    if not ways:
        raise UsageProblem(f"{called}: no line looks like a step", f"--step '{_EXAMPLE}' describes one")
    for way in ways:
        with open_log(log) as file:
            reading = read_log(called, _renamed(read_chunks(file, called), names), plugins, way)
        if reading.verdict.window is not None:
            break
    echo_lines(page(reading).rstrip())
    if (window := reading.verdict.window) is not None:
        if way is not json_reader:
            return {"step": found}
        speed = window.quantity.name.removesuffix("_per_gpu")
        headline = f"{speed}_per_gpu" if speed.endswith("_per_s") else speed
        return {"json": True, **({"json_keys": named} if named else {}), "headline": headline}
    if keys and not named:
        key = next((key for key in keys if _OF_SPEED.search(key)), "KEY")
        how = f"madlite init {shlex.quote(script)} --log {shlex.quote(str(log))} --keys {shlex.quote(key)}=tokens_per_s"
        question = f"Which of {', '.join(keys)} is the speed, as {key}=tokens_per_s (or {_SPEEDS})"
        return _tried(log, script, step, _answer(question, how), no_plugins)
    how = f"the keys of its JSON objects: {', '.join(keys)}" if keys else f"the pattern {found}"
    hint = f"madlite parse {shlex.quote(str(log))} --step REGEX tries another one; {USUAL_NAMES}"
    if keys:
        hint = f"--keys KEY=tokens_per_s says what a key counts; or {_SPEEDS}"
    raise UsageProblem(f"{called} has no steady steps, or no speed, by {how}", hint)


def _names(named: str) -> dict[str, str]:
    """Return the names of keys that KEY=NAME,… gives.

    Raises:
        UsageProblem: it is no such list.
    """
    names: dict[str, str] = {}
    for part in filter(None, map(str.strip, named.split(","))):
        key, _, name = (word.strip() for word in part.rpartition("="))
        if not (key and name):
            raise UsageProblem(f"--keys has {part!r}, which is no KEY=NAME", "--keys throughput=tokens_per_s")
        names[key] = name
    return names


def _renamed(chunks: Iterator[bytes], names: Mapping[str, str]) -> Iterator[bytes]:
    """Yield the bytes of a log with other names of keys, in whole lines; those of a very long line as they are."""
    if not names:
        yield from chunks
        return
    rest: list[bytes] = []  # of a line, in order: each byte is joined once
    for chunk in chunks:
        lines, end, last = chunk.rpartition(b"\n")
        if end:
            yield _with_names(b"".join((*rest, lines, end)), names)
            rest = []
        rest.append(last)
        if sum(map(len, rest)) > _LONGEST:
            yield from rest
            rest = []
    yield _with_names(b"".join(rest), names)


def _with_names(text: bytes, names: Mapping[str, str]) -> bytes:
    for key, name in names.items():
        new = json.dumps(name).encode().replace(b"\\", rb"\\")  # a backslash is special in a replacement
        text = re.sub(rb'"%s"(?=\s*:)' % re.escape(key.encode()), new, text)
    return text


def _json_keys(lines: Iterable[str]) -> list[str]:
    """Return the keys of the first line with a JSON object of several numbers; none where there is no such line."""
    for line in lines:
        with suppress(ValueError, RecursionError):
            found = json.loads(line[line.index("{") :])
            if sum(isinstance(value, int | float) for value in found.values()) > 1:
                return list(found)
    return []


# A backend of one's own.

_PLUGIN_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


@click.group("plugin", cls=Group)
def plugin() -> None:
    """Make a plugin: a backend in a package of its own."""


@plugin.command("new", cls=Command)
@click.argument("name", metavar="NAME")
def new(name: str) -> int:
    """Write the files of a backend NAME into the folder NAME-backend: package, template, log, tests that it passes.

    \b
    madlite plugin new my_trainer
    """
    if not _PLUGIN_NAME.fullmatch(name):
        raise UsageProblem(f"'{name}' is no name of a package", "lower-case letters, digits and _: my_trainer")
    folder = Path(f"{name}-backend")
    if exists(folder):
        raise UsageProblem(f"{folder} is there already", f"ls {folder}")
    source = template_root(None) / "plugin"
    for file in sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        target = folder / _named(str(file.relative_to(source)), name)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_named(target, _named(file.read_text(encoding="utf-8"), name))
        echo(str(target))
    echo(f"next: pip install -e ./{folder} 'madlite[testing]' pytest && pytest {folder}")
    echo(f"      madlite run --tags {name}_model   trains on this machine; docs/plugins.md has the rest")
    return 0


def _named(text: str, name: str) -> str:
    """Return a text of the sample, the backend `tiny`, with another name."""
    return text.replace("Tiny", name.title().replace("_", "")).replace("tiny", name)

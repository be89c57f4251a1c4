"""Compare two checkouts of madlite on what must not change: compare_trees.py OLD NEW.

Each tree is asked in processes of its own, by its own `.venv/bin/python` where it has one, else by --python. Both get
the same input: cards, logs and records of this script's checkout, the runs that OLD made, and packages built from the
pages of OLD. What they answer is written as texts, in which what no two runs share (times, ids, folders) is replaced,
and compared text by text.

Exit code: 0 nothing differs, 1 something does, 4 wrong usage.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import enum
import importlib
import inspect
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

Facts = dict[str, str]
SAME, DIFFERS, USAGE = 0, 1, 4
DATA = Path(__file__).resolve().parents[1] / "tests" / "data"
MACHINES = ("8xMI300X", "8xMI325X", "8xMI355X", "8xH100", "2xH200")
PAGES = ("plugins.md", "runtimes.md")  # pages whose packages are built, and whose imports plugins have copied
LIMIT_S = 300
MOST_TEXTS, MOST_COLUMNS = 10, 240  # of an area's differences, and of a line, without --full

# What no two runs have in common, in this order; the places of the trees are replaced before.
VOLATILE: tuple[tuple[str, str], ...] = (
    (r"\d{8}T\d{6}(-[\w.-]*?)?-[0-9a-f]{6,8}\b", r"<ID\1>"),
    (r"\d{8}T\d{6}", "<STAMP>"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?( UTC)?", "<TIME>"),
    (rf"\b{re.escape(socket.gethostname())}\b", "<HOST>"),
    (r"\b0x[0-9a-f]{6,}", "<ADDRESS>"),
    (r"(differs:\n)? *(# environment: |env )PYTHONPATH.*\n", ""),  # it names the tree, and so is another for NEW
    (r"/tmp/[\w./-]+", "<TEMPORARY>"),  # noqa: S108
)


class Side(NamedTuple):
    """One tree as a process is asked about it; `place` is its own folder of the comparison."""

    name: str
    tree: Path
    python: Path
    place: Path
    docs: Path  # the pages that both sides are held to: OLD's
    runs: Path  # the folder in which OLD ran the fixture's cards
    packages: Path  # the packages of the pages, as their author has them
    logs: tuple[Path, ...]


# --- asking one tree, in a process that has imported nothing of another -----------------------------------------------


class Said(NamedTuple):
    """What a command printed, and its exit code."""

    words: Sequence[str]
    out: str
    err: str
    code: int

    def __str__(self) -> str:
        out = self.out.rstrip("\n")
        return f"$ madlite {shlex.join(self.words)}\n{out}\n--- stderr\n{self.err}--- exit code {self.code}\n"


def command(words: Sequence[str], folder: Path) -> Said:
    """Run a command of the console script in a fork of this interpreter, which spares the imports."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile("w+") as loaded:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.chdir(folder)
            for fd, target in ((os.open(os.devnull, os.O_RDONLY), 0), (out.fileno(), 1), (err.fileno(), 2)):
                os.dup2(fd, target)
            signal.alarm(LIMIT_S)
            code = 99
            try:
                code = _enter(words)
            finally:
                json.dump(sorted(sys.modules), loaded)
                for stream in (loaded, sys.stdout, sys.stderr):
                    stream.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code >= 0:
            _import_too(loaded)
        return Said(words, _read(out), _read(err), code)


def _enter(words: Sequence[str]) -> int:
    sys.argv = ["madlite", *words]
    (script,) = entry_points(group="console_scripts", name="madlite")
    try:
        script.load()()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _import_too(loaded: Any) -> None:
    """Import what a command imported, so that the next one need not."""
    loaded.seek(0)
    for name in json.load(loaded):
        if name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def _read(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode("utf-8", "replace"))


def each(lines: Iterable[str], folder: Path) -> Facts:
    """Return what each command line gives in a folder, one after the other."""
    return {line: str(command(shlex.split(line), folder)) for line in lines}


def lines_of(name: str) -> list[str]:
    """Return the command lines of an area, which all are the same for both trees."""
    return (DATA / "command_lines" / f"{name}.txt").read_text().splitlines()


def own_copy(side: Side, area: str) -> Path:
    """Return a copy of the folder of OLD's runs."""
    return Path(shutil.copytree(side.runs, side.place / area, symlinks=True))


# --- 1: rows and side files, from runs of each tree -------------------------------------------------------------------

RECORDED = ("record.json", "plan.json", "steps.jsonl")


def rows(side: Side) -> Facts:
    """Run the fixture's cards on the host, and return the results files, the files beside them and the records."""
    folder = side.place / "runs"
    shutil.copytree(DATA / "minimad", folder)
    data = folder / "data.json"
    data.write_text(data.read_text().replace("@FIXTURE@", str(folder)))
    header = (DATA / "golden/v1.perf.csv").read_text().splitlines()[0]
    (folder / "version1.csv").write_text(header + "\n")
    given = {path.name for path in folder.iterdir()} - {"version1.csv"}
    facts = each(lines_of("rows"), folder)
    made = [path for path in folder.iterdir() if path.name not in given]
    facts |= {f"file {path.name}": path.read_text() for path in made if path.suffix in (".csv", ".json")}
    facts["names of files"] = "".join(f"{path.name}\n" for path in sorted(made))
    ended = sorted(folder.glob("madlite_runs/*/record.json"), key=lambda path: path.stat().st_mtime_ns)
    for at, path in enumerate(ended):
        files = (path.with_name(name) for name in RECORDED)
        facts |= {f"run {at} {file.name}": file.read_text() for file in files if file.exists()}
    return {name: _without_durations(text) for name, text in facts.items()}


_MEASURED = (
    (r"\d+\.\d{7,}(e-\d+)?", "<SECONDS>"),
    (r"\b[0-9a-f]{40,64}\b", "<HASH>"),
    (r'("(?:\w*_s|run|total|at|start|end|bytes|offset|pid|boot|time|elapsed)"): ?-?[\d.e-]+', r"\1: <MEASURED>"),
    (r"\btook \d[\d.]* \w+|: \d+\.\d\d ?s\b", "<SECONDS>"),
)


def _without_durations(text: str) -> str:
    """Return a text of a run without what was measured of it, which no two runs share."""
    for pattern, instead in _MEASURED:
        text = re.sub(pattern, instead, text)
    return text


# --- 2: the record ----------------------------------------------------------------------------------------------------


def record(side: Side) -> Facts:
    """Return the schema of records, and what is read of records that earlier versions wrote."""
    folder = side.place / "record"
    facts = {f"schema {path.name}": path.read_text() for path in side.tree.glob("madlite/**/record.schema.json")}
    ids = []
    for path in sorted((DATA / "records").glob("*.json")):
        text = path.read_text()
        ids.append(json.loads(text)["id"])
        own = folder / "madlite_runs" / ids[-1]
        own.mkdir(parents=True)
        (own / "record.json").write_text(text)
    facts |= each([f"show {way}{one}" for one in ids for way in ("", "--json ")], folder)
    facts |= each(["runs --json", "runs", "report rebuild --output again.csv", "export --to csv -o all.csv"], folder)
    return facts | {path.name: path.read_text() for path in folder.glob("*.csv")}


# --- 3: exit codes ----------------------------------------------------------------------------------------------------


def exits(side: Side) -> Facts:
    """Return the exit code and the words of many command lines, right and wrong."""
    folder = own_copy(side, "exits")
    for name, slower in (("perf.csv", "slower.csv"), ("measured.csv", "slowed.csv")):
        text = (folder / name).read_text()
        (folder / slower).write_text(text.replace(",123.45,", ",61.5,").replace(",2013,", ",1500,"))
    return {name: _without_durations(text) for name, text in each(lines_of("exits"), folder).items()}


# --- 4, 5: what is printed of runs that OLD made ----------------------------------------------------------------------

PRINTED = ("*.html", "again.csv", "exported.csv", "exported.prom", "of-rows.csv", "tiny.json")


def printed_json(side: Side) -> Facts:
    """Return what each read-only command prints with --json."""
    folder = own_copy(side, "json")
    lines = [f"{line} --json".replace("--once --json", "--json") for line in lines_of("read")]
    ids = sorted(path.parent.name for path in folder.glob("madlite_runs/*/record.json"))
    return each([*lines, *(f"show {one} --json" for one in ids)], folder)


def screens(side: Side) -> Facts:
    """Return the help of every command, the options of each, and what the main ones print and write."""
    folder = own_copy(side, "screens")
    facts = each([*lines_of("read"), *lines_of("screens")], folder)
    ids = sorted(path.parent.name for path in folder.glob("madlite_runs/*/record.json"))
    facts |= each([f"{word} {one}" for word in ("show", "reproduce") for one in ids], folder)
    facts |= {f"file {path.name}": path.read_text() for pattern in PRINTED for path in folder.glob(pattern)}
    facts |= {f"options {name}": json.dumps(known, indent=1, default=str) for name, known in _options()}
    names = [name.removeprefix("options ") for name in facts if name.startswith("options ")]
    return facts | each([f"{name} --help" for name in (*names, "")], folder)


def _options() -> Iterator[tuple[str, Any]]:
    """Yield every command with what click knows of it, hidden options and commands too."""
    import click

    found: list[dict[str, Any]] = []

    def caught(self: click.Command, *_: object, **__: object) -> NoReturn:
        found.append(click.Context(self).to_info_dict()["command"])
        raise SystemExit

    whole, click.Command.main = click.Command.main, caught  # type: ignore[method-assign]
    _enter([])
    click.Command.main = whole  # type: ignore[method-assign]
    return _flat("", found[0])


def _flat(name: str, known: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for word, one in known.pop("commands", {}).items():
        yield from _flat(f"{name} {word}".strip(), one)
    if name:
        yield name, known


# --- 6: plans ---------------------------------------------------------------------------------------------------------


def plans(side: Side) -> Facts:
    """Return every plan of the bundled cards on described machines, and what would be started; MAD's cards on one."""
    empty = side.place / "plans"
    empty.mkdir()
    mad = _mad_checkout(side.place / "mad")
    places = (*((empty, machine) for machine in MACHINES), (mad, MACHINES[0]))
    return {f"{folder.name} {name}": text for folder, machine in places for name, text in _planned(folder, machine)}


def _planned(folder: Path, machine: str) -> Iterator[tuple[str, str]]:
    words = ("--tags", "all", "--machine", machine)
    explained = command(["explain", "--all", "--json", *words], folder)
    yield f"{machine} explain", f"{explained.err}--- exit code {explained.code}\n"
    for n, plan in enumerate(json.loads(explained.out)):
        yield f"{machine} {n} {plan['card']['name']}", json.dumps(plan, indent=1, sort_keys=True, ensure_ascii=False)
    dry = command(["run", "--dry-run", *words], folder)
    yield f"{machine} dry run", f"{dry.err}--- exit code {dry.code}\n"
    for n, text in enumerate(re.split(r"^(?=# \S+ .*· runtime \w+$)", dry.out, flags=re.MULTILINE)):
        yield f"{machine} dry run {n} {text[2:].partition(' ')[0]}", text


def _mad_checkout(folder: Path) -> Path:
    """Make a checkout that has MAD's cards, and of each an empty script and a Dockerfile."""
    folder.mkdir()
    text = (DATA / "cards.json").read_text()
    (folder / "models.json").write_text(text)
    for card in json.loads(text):
        script = folder / card["scripts"]
        files = {script if script.suffix else script / "run.sh": ""}
        if card.get("dockerfile"):
            files[folder / f"{card['dockerfile']}.ubuntu.amd.Dockerfile"] = _DOCKERFILE
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    return folder


_DOCKERFILE = "# CONTEXT {'gpu_vendor': 'AMD', 'guest_os': 'UBUNTU'}\nARG BASE_DOCKER=rocm/x\nFROM $BASE_DOCKER\n"


# --- 7: verdicts of logs ----------------------------------------------------------------------------------------------


def logs(side: Side) -> Facts:
    """Return what is read of every log: steps, numbers, verdict."""
    found = [path for folder in (DATA / "logs", DATA / "causes", *side.logs) for path in sorted(folder.rglob("*"))]
    files = [str(path) for path in found if path.is_file()]
    facts = {}
    for at in range(0, len(files), 50):
        said = command(["parse", "--json", *files[at : at + 50]], side.place)
        facts[f"{at} and the next"] = f"{said.err}--- exit code {said.code}\n"
        facts |= {one["log"]: json.dumps(one, indent=1, ensure_ascii=False) for one in json.loads(said.out)}
    return facts


# --- 8: what plugins use ----------------------------------------------------------------------------------------------


def plugins(side: Side) -> Facts:
    """Return the public names, the hooks and the entry points, what pages import, and what packages' own tests say."""
    import madlite

    facts = {f"madlite.{name}": _described(getattr(madlite, name)) for name in madlite.__all__}
    facts["madlite.__all__"] = "".join(f"{name}\n" for name in madlite.__all__)
    testing = importlib.import_module("madlite.testing")
    facts |= {f"madlite.testing.{name}": _described(getattr(testing, name)) for name in testing.__all__}
    facts["hooks"] = "".join(sorted(_hooks(side.tree)))
    project = _pyproject(side.tree)["project"]
    facts["entry points"] = json.dumps({key: project.get(key, {}) for key in ("scripts", "entry-points")}, indent=1)
    facts["imports of the pages"] = "".join(_imports(side.docs))
    for package in sorted(side.packages.iterdir()):
        facts[f"tests of {package.name}"] = _own_tests(package, side.place)
    return facts


def _described(thing: Any) -> str:
    """Return a public thing's signature and members, without the modules in which they lie."""
    lines = [f"{type(thing).__name__} {_signature(thing)}"]
    if not inspect.isclass(thing):
        lines += [] if callable(thing) else [repr(thing)]
    elif issubclass(thing, enum.Enum):
        lines += [f"{name} = {member.value!r}" for name, member in thing.__members__.items()]
    else:
        names = {name for one in thing.__mro__ for name in vars(one) if one.__module__.startswith("madlite")}
        names |= {name for one in thing.__mro__ for name in vars(one).get("__annotations__", {})}
        lines += [f"{name} {_member(thing, name)}" for name in sorted(names) if not name.startswith("_")]
    return re.sub(r"\bmadlite(?:_plugins)?(?:\.\w+)*\.(\w+)", r"\1", "\n".join(lines)) + "\n"


def _member(owner: type, name: str) -> str:
    annotations = [vars(one).get("__annotations__", {}) for one in owner.__mro__]
    told = next((str(known[name]) for known in annotations if name in known), "")
    member = inspect.getattr_static(owner, name, None)
    if isinstance(member, classmethod | staticmethod):
        member = member.__func__
    if isinstance(member, property):
        return f"property {_signature(member.fget)}"
    return f"{told} {_signature(member)}".strip()


def _signature(thing: Any) -> str:
    try:
        return str(inspect.signature(thing)) if callable(thing) else ""
    except ValueError:  # of a built-in
        return "(...)"


def _hooks(tree: Path) -> Iterator[str]:
    """Yield each hook with its arguments, wherever its specification lies."""
    for path in tree.glob("madlite/**/*.py"):
        if "@hookspec" in path.read_text():
            module = importlib.import_module(".".join(path.relative_to(tree).with_suffix("").parts))
            for holder in (module, *(one for one in vars(module).values() if inspect.isclass(one))):
                for name, function in vars(holder).items():
                    if hasattr(function, "madlite_spec"):
                        yield f"{name}{inspect.signature(function)} {function.madlite_spec}\n"


def _imports(docs: Path) -> Iterator[str]:
    """Yield each name of madlite that a page imports, and whether it can be imported."""
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", (docs / page).read_text(), re.DOTALL):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "madlite":
                    there = importlib.import_module(str(node.module))
                    for name in node.names:
                        yield f"{page}: from {node.module} import {name.name}: {hasattr(there, name.name)}\n"


def _own_tests(package: Path, place: Path) -> str:
    """Return the outcome of each test that a package's author has, with the package as OLD built it."""
    own = shutil.copytree(package, place / package.name)
    argv = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=line", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(argv, cwd=own, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    outcomes = re.findall(r"^(?:PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) .*$", done.stdout, re.MULTILINE)
    return "\n".join([*sorted(outcomes), f"exit code {done.returncode}", "" if outcomes else done.stdout + done.stderr])


AREAS: dict[str, Callable[[Side], Facts]] = {
    "rows": rows,
    "record": record,
    "exits": exits,
    "json": printed_json,
    "screens": screens,
    "plans": plans,
    "logs": logs,
    "plugins": plugins,
}
OF_RUNS = ("exits", "json", "screens")  # they read the runs that OLD made
OF_PACKAGES = ("rows", "plugins", *OF_RUNS)


def collect(area: str, described: str) -> None:
    """Write the facts of an area to a file: what a process of one tree does."""
    told = json.loads(described)
    further = tuple(map(Path, told.pop("logs")))
    side = Side(told.pop("name"), logs=further, **{key: Path(text) for key, text in told.items()})
    madlite = importlib.import_module("madlite")
    if not Path(str(madlite.__file__)).is_relative_to(side.tree):
        raise SystemExit(f"error: madlite was imported from {madlite.__file__}, not from {side.tree}")
    (side.place / f"{area}.json").write_text(json.dumps(AREAS[area](side)))


# --- comparing two ----------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """The facts of one side, how long they took, and why there are none."""

    facts: Facts
    seconds: float
    problem: str = ""


def ask(area: str, side: Side, environ: Mapping[str, str]) -> Outcome:
    """Have one tree tell the facts of an area."""
    begin = time.monotonic()
    given = json.dumps(side._asdict(), default=str)
    argv = [str(side.python), str(Path(__file__).resolve()), "--collect", area, given]
    done = subprocess.run(argv, cwd=side.place, env=environ, capture_output=True, text=True, check=False)
    took = time.monotonic() - begin
    if done.returncode:
        return Outcome({}, took, (done.stdout + done.stderr)[-2000:])
    return Outcome(json.loads((side.place / f"{area}.json").read_text()), took)


def environment(side: Side, site: Path) -> dict[str, str]:
    """Return what a tree's processes see: nothing of the caller's but the search path of programs."""
    home = side.place / "home"
    home.mkdir(parents=True)
    modules = (_metadata(side.tree, side.place / "metadata"), side.tree, side.tree / "plugins", site)
    return {
        "PATH": f"{side.python.parent}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join(map(str, modules)),
        "HOME": str(home),
        "MADLITE_GPU_LEASES": str(home / "leases"),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "COLUMNS": "120",
        "PYTHONHASHSEED": "0",
    }


def _metadata(tree: Path, folder: Path) -> Path:
    """Write what an installation of the tree would tell of its entry points, which that of an interpreter may not."""
    project = _pyproject(tree)["project"]
    (version,) = re.findall(r'^__version__ = "(.*)"$', (tree / "madlite/__init__.py").read_text(), re.MULTILINE)
    info = folder / f"madlite-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: madlite\nVersion: {version}\n")
    groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
    lines = [line for name, of in groups.items() for line in (f"[{name}]", *(f"{key} = {of[key]}" for key in of), "")]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


def _pyproject(tree: Path) -> dict[str, Any]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return dict(toml.loads((tree / "pyproject.toml").read_text()))


def build_packages(docs: Path, packages: Path, site: Path, python: Path) -> None:
    """Write the packages of the pages as their author types them off, build their wheels and install these."""
    for page in PAGES:
        blocks = re.findall(r"```\w+\n(?:# |\{# )([\w./-]+)(?: #\})?\n(.*?)```", (docs / page).read_text(), re.DOTALL)
        for name, text in blocks:
            path = packages / Path(page).stem / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site)]
    done = subprocess.run([*pip, *map(str, packages.iterdir())], capture_output=True, text=True, check=False)
    if done.returncode:
        refuse(f"the packages of docs/ cannot be built with {python}: {done.stderr.strip()[-500:]}")


def refuse(message: str) -> NoReturn:
    """End with a sentence about wrong usage."""
    sys.stderr.write(f"error: {message}\n hint: scripts/compare_trees.py --help\n")
    sys.exit(USAGE)


def places_hidden(sides: Sequence[Side], scratch: Path) -> Callable[[str], str]:
    """Return what replaces the places of both trees, and everything volatile."""
    prefixes = {side.python.parents[1] for side in sides} | {side.python.resolve().parents[1] for side in sides}
    named = [(rf"{re.escape(str(scratch))}/(?:old|new)\b", "<PLACE>"), (re.escape(str(scratch)), "<PLACE>")]
    named += [(rf"{re.escape(str(path))}(?=/bin|/lib)", "<PYTHON>") for path in sorted(prefixes, reverse=True)]
    named += [(rf"{re.escape(str(side.tree))}\b", "<TREE>") for side in sides]
    table = [(re.compile(pattern), instead) for pattern, instead in (*named, *VOLATILE)]

    def hidden(text: str) -> str:
        for pattern, instead in table:
            text = pattern.sub(instead, text)
        return text

    return hidden


def differences(old: Facts, new: Facts) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each text that differs, and its difference."""
    for name in [*old, *(name for name in new if name not in old)]:
        if old.get(name) != new.get(name):
            before, after = (facts.get(name, "").splitlines() for facts in (old, new))
            yield name, list(difflib.unified_diff(before, after, n=1, lineterm=""))[2:]


def shown(name: str, lines: list[str], most: int | None) -> str:
    """Return a difference as it is printed."""
    cut = lines if most is None else [line[:MOST_COLUMNS] for line in lines[:most]]
    rest = [f"… {len(lines) - len(cut)} more lines (--full)"] if len(cut) < len(lines) else []
    return "\n".join([f"  {name}", *(f"    {line}" for line in (*cut, *rest))]) + "\n"


def write_texts(facts: Facts, folder: Path) -> None:
    """Write the texts of an area into a folder, each under its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in facts.items():
        (folder / (re.sub(r"[^\w.=~-]+", "_", name)[:180] or "_")).write_text(text)


def report(area: str, old: Outcome, new: Outcome, given: argparse.Namespace) -> bool:
    """Print what differs in an area; return whether nothing does."""
    found = list(differences(old.facts, new.facts))
    took = f"{old.seconds:.0f} s, {new.seconds:.0f} s"
    problems = [
        f"  {name} could not be asked:\n{one.problem}\n" for name, one in (("OLD", old), ("NEW", new)) if one.problem
    ]
    if problems:
        sys.stdout.write(f"{area}: not compared ({took})\n{''.join(problems)}")
        return False
    word = f"{len(found)} of {len(old.facts)} texts differ" if found else f"same, {len(old.facts)} texts"
    sys.stdout.write(f"{area}: {word} ({took})\n")
    most = None if given.full else MOST_TEXTS
    for name, lines in found[:most]:
        sys.stdout.write(shown(name, lines, None if given.full else given.lines))
    if most is not None and len(found) > most:
        names = ", ".join(name for name, _ in found[most:])[:1000]
        sys.stdout.write(f"  … {len(found) - most} more texts (--full): {names}\n")
    sys.stdout.flush()
    return not found


def compare(given: argparse.Namespace, scratch: Path) -> int:
    """Ask both trees area by area, two processes at once, and print what differs."""
    packages, site = scratch / "packages", scratch / "site"
    docs = given.old / "docs"
    sides = [
        Side(
            name,
            tree,
            _interpreter(tree, given.python),
            scratch / name,
            docs,
            scratch / "old/runs",
            packages,
            given.logs,
        )
        for name, tree in (("old", given.old), ("new", given.new))
    ]
    environs = {side.name: environment(side, site) for side in sides}
    if set(given.only) & set(OF_PACKAGES):
        build_packages(docs, packages, site, sides[0].python)
    hidden = places_hidden(sides, scratch)
    with ThreadPoolExecutor(given.jobs) as pool:

        def start(area: str) -> list[Future[Outcome]]:
            return [pool.submit(ask, area, side, environs[side.name]) for side in sides]

        asked: dict[str, list[Future[Outcome]]] = {}
        first = start("rows") if "rows" in given.only else []
        if set(given.only) & set(OF_RUNS):
            first = first or [pool.submit(ask, "rows", sides[0], environs["old"])]
        asked |= {area: start(area) for area in given.only if area not in ("rows", *OF_RUNS)}
        if first and first[0].result().problem:
            refuse(f"OLD cannot run the fixture's cards: {first[0].result().problem}")
        asked |= {area: start(area) for area in given.only if area in OF_RUNS} | {"rows": first}
        return _report_all(given, asked, hidden)


def _hidden_all(facts: Facts, hidden: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Yield facts with nothing volatile; of those whose names become one, each has its number."""
    seen: Counter[str] = Counter()
    for name, text in facts.items():
        seen[hidden(name)] += 1
        number = seen[hidden(name)]
        yield hidden(name) if number == 1 else f"{hidden(name)} ({number})", hidden(text)


def _report_all(
    given: argparse.Namespace, asked: Mapping[str, list[Future[Outcome]]], hidden: Callable[[str], str]
) -> int:
    same = True
    for area in given.only:
        outcomes = [future.result() for future in asked[area]]
        old, new = (one._replace(facts=dict(_hidden_all(one.facts, hidden))) for one in outcomes)
        if given.out:
            for name, one in (("old", old), ("new", new)):
                write_texts(one.facts, given.out / name / area)
        same &= report(area, old, new, given)
    return SAME if same else DIFFERS


def _interpreter(tree: Path, other: Path) -> Path:
    own = tree / ".venv/bin/python"
    return own if own.exists() else other


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        refuse(message)


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.add_argument(
        "--only", action="append", choices=AREAS, metavar="AREA", help=f"{', '.join(AREAS)}; repeatable"
    )
    parser.add_argument(
        "--logs", action="append", type=Path, default=[], metavar="DIR", help="further logs; repeatable"
    )
    parser.add_argument("--lines", type=int, default=20, metavar="N", help="lines of each difference [default: 20]")
    parser.add_argument("--full", action="store_true", help="print every difference whole")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write both sides' texts here, for another program")
    parser.add_argument("--python", type=_absolute, default=Path(sys.executable), help="for a tree without .venv")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at once [default: 2]")
    given = parser.parse_args(words)
    given.old, given.new = given.old.resolve(), given.new.resolve()
    given.logs = tuple(path.resolve() for path in given.logs)
    given.only = [area for area in AREAS if area in (given.only or AREAS)]
    for tree in (given.old, given.new):
        if not (tree / "madlite/__init__.py").is_file():
            refuse(f"{tree} is no checkout of madlite: it has no madlite/__init__.py")
    for folder in given.logs:
        if not folder.is_dir():
            refuse(f"--logs {folder}: there is no such folder")
    return given


def _absolute(text: str) -> Path:
    return Path(text).absolute()  # links stay: they are what makes an environment


def main() -> int:
    """Compare the trees of the command line; with --collect tell the facts of one."""
    if sys.argv[1:2] == ["--collect"]:
        sys.path.pop(0)  # the folder of this script
        collect(*sys.argv[2:4])
        return 0
    given = _arguments(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="compare-trees-") as scratch:
        return compare(given, Path(scratch).resolve())


if __name__ == "__main__":
    sys.exit(main())

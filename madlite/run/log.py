"""A run's output: secrets masked, written byte for byte to run.log, then passed on."""

from __future__ import annotations

import logging
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from madlite.files import Folder, folder_of
from madlite.images.build import build_command_text
from madlite.measure.lines import (
    RUNNING,
    clone_line,
    command_line,
    duration_lines,
    image_lines,
    limit_line,
    result_lines,
    scripts_line,
)
from madlite.measure.verdict import Observation, Verdict
from madlite.model import Action, Cause, Chunk, EnvValue, Exit, RunPlan, Say, Secret, Sink
from madlite.rank_labels import node_label
from madlite.run.probe_inside import SEARCH_S, candidates, commit_of
from madlite.run.state import RunState
from madlite.secrets import Redactor
from madlite.store.log_file import LogFile

Output = Callable[[bytes, int], None]
_FLAGS = os.O_RDWR | os.O_APPEND
_LINES = re.compile(rb"[^\r\n]*(?:\r\n|[\r\n])|[^\r\n]+\Z")
_log = logging.getLogger(__name__)


class RunLog:
    """Writes one run's log; `sinks` get every masked chunk with its stream, 1 for stdout and 2 for stderr.

    `follow` gets each chunk unmasked, for a secret can be part of a number: its results are masked later.
    In a run's `folder` the log is a new file; elsewhere an existing one is appended to.
    A file has at most `limit_bytes`, its beginning and its end; 0 is no limit.  Sinks and `follow` get all of it.
    Live logs are separate files in the workspace: they have the log's bytes and the lines of `write_live`.
    Of one node the output stays byte for byte; of several `nodes` each line begins with its node, as `[node1]: `, and a
    run's folder has a log of each node's own lines beside it, `run.node1.log`; all of these have the limit together.
    """

    def __init__(
        self,
        path: Path,
        secrets: Iterable[str],
        sinks: Iterable[Output],
        follow: Sink = lambda chunk: None,
        *,
        nodes: int = 1,
        folder: Folder | None = None,
        limit_bytes: int = 0,
    ) -> None:
        self.problem = ""
        self._home = folder
        self._is_own_home = folder is None
        self._sinks = tuple(sinks)
        self._follow = follow
        self._secrets = tuple(secrets)
        self._redactors: dict[tuple[int, int], Redactor] = {}  # of each node and stream
        self._has_nodes = nodes > 1
        self._of_nodes: dict[int, LogFile | None] = {}
        self._own = Redactor(self._secrets)  # for madlite's own lines
        self._limit_bytes, self._limit_of_node = limit_bytes, limit_bytes // nodes
        self._live: list[LogFile] = []
        self._live_name = ""
        self._main: LogFile | None = None
        self._name = path
        try:
            self._home = home = folder or Folder.open(path.parent)
            open_log = home.create if folder is not None else home.open_file
            self._main = LogFile(open_log(path.name, _FLAGS), path.name, home, limit_bytes=limit_bytes)
        except OSError as error:  # a full disk, a folder without permission: the run continues without the log
            self._report(f"no {path.name}", error)

    def feed(self, chunk: Chunk) -> None:
        """Add output of the workload; never raises for a full disk, the workload continues."""
        self._follow(chunk)
        source = chunk.node, chunk.stream
        redactor = self._redactors.get(source)
        if redactor is None:
            redactor = self._redactors[source] = Redactor(self._secrets)
        self._pass_on(redactor.feed(chunk.data), source)

    def say(self, text: str) -> None:
        """Add a line of madlite, e.g. of an image build."""
        self._write_line(text, self._files)

    def write_live(self, text: str) -> None:
        """Add a line to the live logs alone."""
        self._write_line(text, self._live)

    def copy_live(self, path: Path) -> None:
        """Copy what the first live log has so far, e.g. of an image's build."""
        if not self._live:
            return
        with _optional_file(path), folder_of(path) as (folder, name):
            folder.write(name, self._live[0].read())

    def begin_live(self, path: Path) -> None:
        """Write from now on to a live log too; earlier output is not in it, and the last run to start has its name."""
        if self._home is None:
            return
        with _optional_file(path), folder_of(path) as (folder, name):
            with folder.atomic(name) as beside:
                file = LogFile(folder.create(beside, _FLAGS), beside, self._home, limit_bytes=self._limit_bytes)
            self._live.append(file)
            self._live_name = name

    def link_live(self, path: Path) -> None:
        """Give the last live log another name in its folder; where a later run of the card has its name, that one's."""
        if not self._live:
            return
        with _optional_file(path), folder_of(path) as (folder, name), folder.atomic(name) as beside:
            os.link(self._live_name, beside, src_dir_fd=folder.fd, dst_dir_fd=folder.fd, follow_symlinks=False)

    def of_node(self, node: int) -> Iterator[bytes]:
        """Yield the log of one of several nodes, as far as it is written."""
        if (file := self._of_nodes.get(node)) is not None:
            yield from file.read()

    def flush(self) -> None:
        """Pass on buffered output; call it when an action ends."""
        for source, redactor in self._redactors.items():
            self._pass_on(redactor.flush(), source)

    def close(self) -> None:
        """Write buffered output and close the files, the end joined to the beginning where there is a limit."""
        self.flush()
        self._each([*self._files, *filter(None, self._of_nodes.values())], LogFile.close)
        if self._is_own_home and self._home is not None:
            self._home.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """What is missing in the closed log, and why."""
        return tuple(filter(None, (self.problem, self._main.note if self._main is not None else "")))

    @property
    def _files(self) -> list[LogFile]:
        return [self._main, *self._live] if self._main is not None else self._live

    def _pass_on(self, data: bytes, source: tuple[int, int]) -> None:
        """Write masked output of a node and stream; of several nodes each piece ends with a line's end."""
        if not self._has_nodes:
            self._write(data, source[1])
        elif lines := _LINES.findall(data):
            end = b"" if lines[-1].endswith((b"\n", b"\r")) else b"\n"
            self._write_lines([*lines[:-1], lines[-1] + end], source)

    def _write_lines(self, lines: Sequence[bytes], source: tuple[int, int]) -> None:
        """Write complete lines of a node to its own log, and behind its label to the joined one."""
        node, stream = source
        if node not in self._of_nodes:
            self._of_nodes[node] = self._log_of_node(node)
        if (file := self._of_nodes[node]) is not None:
            self._each([file], lambda file: file.write(b"".join(lines)))
        label = node_label(node).encode()
        self._write(b"".join(label + line for line in lines), stream)

    def _log_of_node(self, node: int) -> LogFile | None:
        name = f"{self._name.stem}.node{node}{self._name.suffix}"
        if self._home is None or self._is_own_home:
            return None
        with _optional_file(self._name.with_name(name)):
            return LogFile(self._home.create(name, _FLAGS), name, self._home, limit_bytes=self._limit_of_node)
        return None

    def _write(self, data: bytes, stream: int) -> None:
        if not data:
            return
        self._each(self._files, lambda file: file.write(data))
        for sink in self._sinks:
            sink(data, stream)

    def _write_line(self, text: str, files: Iterable[LogFile]) -> None:
        line = self._own.text(text.rstrip("\n") + "\n").encode("utf-8", "surrogateescape")
        self._each(files, lambda file: file.write_line(line))

    def _each(self, files: Iterable[LogFile], write: Callable[[LogFile], None]) -> None:
        for file in files:
            try:
                write(file)
            except OSError as error:
                self._report(f"{'the' if file is self._main else 'a live'} log is incomplete", error)

    def _report(self, what: str, error: OSError) -> None:
        """Report once that the log is incomplete."""
        if not self.problem:
            self.problem = f"{what}: {error.strerror}"
            _log.warning("%s", self.problem)


@contextmanager
def _optional_file(path: Path) -> Iterator[None]:
    """Log a warning where an additional log file cannot be written; no partial file is left."""
    try:
        yield
    except OSError as error:
        _log.warning("no %s: %s", path.name, error.strerror)


# The lines that madengine prints of a run, in its order, for the live log and in contract mode for the screen.

# A container's request as a `docker run` command, as madengine prints it; the container is started through the API.
_FUSE = "/dev/fuse"


def option_lines(plan: RunPlan) -> tuple[str, str]:
    """Return the lines of a plan's GPUs and of all its options, in madengine's order; secrets are ***."""
    gpus = " ".join(_gpus(plan))
    return f"GPU arguments: {gpus}", f"Docker options: {' '.join(_options(plan, gpus))}"


def _options(plan: RunPlan, gpus: str) -> Iterator[str]:
    given = plan.engine_options
    yield f"--network {given.network} -u {given.user}"
    yield from (f"--group-add {name}" for name in given.group_add)
    yield from (f"--cap-add {name}" for name in given.cap_add)
    yield from (f"--device {name}" for name in plan.devices if name == _FUSE)
    yield from (f"--security-opt {text}" for text in given.security_opt)
    yield from (f"--ulimit {text}" for text in given.ulimits)
    yield from ([f"--ipc={given.ipc}"] if given.ipc else [])
    yield from filter(None, [gpus])
    yield from ([f"--cpuset-cpus {given.cpuset}"] if given.cpuset else [])
    yield from (f"--env {name}={_shown(value)}" for name, value in plan.env.items())
    for mount in plan.mounts:
        end = ":ro" if mount.read_only else ""
        yield f"-v {shlex.quote(f'{mount.source}:{mount.target}{end}')}"
    yield from filter(None, [given.extra])


def _gpus(plan: RunPlan) -> Iterator[str]:
    if plan.machine.vendor == "NVIDIA" and plan.place.gpu_ids:
        yield f"--gpus '\"device={','.join(map(str, plan.place.gpu_ids))}\"'"
    yield from (f"--device={name}" for name in plan.devices if name != _FUSE)


def _shown(value: EnvValue) -> str:
    return "***" if isinstance(value, Secret) else shlex.quote(value)


def docker_run(plan: RunPlan) -> str:
    """Return the command that starts a plan's container, as madengine has it; secrets are ***."""
    options, inside = option_lines(plan)[1].partition(": ")[2], f"{plan.inside}/"
    image = plan.image.ref if plan.image is not None else ""
    place = f"-v {shlex.quote(f'{plan.workspace}:{inside}')} --workdir {inside}"
    return f"docker run -t -d {options} {place} --name {plan.name} {image} cat"


def docker_exec(plan: RunPlan, action: Action, mask: Callable[[str], str]) -> str:
    """Return the command of an action in its container, as madengine has it.

    It is masked before it is quoted once more: a secret in two layers of quotes is not found.
    """
    argv = action.argv
    command = argv[2] if argv[:2] == ("bash", "-c") and len(argv) == 3 else shlex.join(argv)
    folder = action.cwd.replace("{folder}", plan.folder_inside)
    within = command if folder == "." else f"cd {shlex.quote(folder)} && {command}"
    return f"docker exec {plan.name} bash -c {shlex.quote(mask(within))}"


class MadLog:
    """Write the lines that madengine would print of a run: `write` adds one to its live log, `show` shows it."""

    def __init__(self, plan: RunPlan, state: RunState, write: Say, show: Say, mask: Callable[[str], str]) -> None:
        self._plan, self._state, self._mask = plan, state, mask
        self._log, self._show = write, show
        self._has_scripts = False

    def prepared(self) -> None:
        """Write how the image was built, and where there is one how long that took and on what it is based."""
        image = self._plan.image
        if image is not None and image.dockerfile is not None and not image.prebuilt:
            self._write(command_line(build_command_text(image, self._plan.workspace)))
        if image is not None and self._state.image.ref:
            self._write_all(image_lines(image, self._state.image))

    def opening(self) -> None:
        """Write the time limit; the screen, what the container is started with."""
        if self._plan.image is not None:
            for line in option_lines(self._plan):
                self._show(line)
        if self._plan.timeout_s is not None:
            self._write(limit_line(self._plan.timeout_s))
        if self._is_docker:
            self._write(command_line(docker_run(self._plan)))

    def before(self, action: Action) -> None:
        """Write the lines that precede an action."""
        if action.kind in ("data", "run") and not self._has_scripts:
            self._has_scripts = True
            if self._plan.card.scripts:
                self._write(scripts_line(_commit(self._plan.workspace / self._plan.card.scripts)))
        if action.kind == "run":
            self._write(RUNNING)
        if self._is_docker:
            self._write(command_line(docker_exec(self._plan, action, self._mask)))

    def after(self, action: Action, ended: Exit) -> None:
        """Write what an action came to; for a failed one madengine prints nothing."""
        if ended.code == 0 and action.kind == "clone" and self._state.git_commit:
            self._write(clone_line(self._state.git_commit))
        if ended.code == 0 and action.kind == "run":
            self._write_all(duration_lines(self._state.durations_s["run"]))

    def judged(self, seen: Observation, verdict: Verdict) -> None:
        """Write what came out of a run whose actions came to their end."""
        if seen.skipped or seen.failed_action or seen.stopped or seen.exit is None or seen.exit.code:
            return
        by_patterns = verdict.cause is Cause.ERROR_PATTERN
        name, rule = self._plan.card.name, self._plan.result_rule
        self._write_all(result_lines(name, verdict.status, verdict.metrics, rule, by_patterns=by_patterns))

    @property
    def _is_docker(self) -> bool:
        """Whether it runs in a container of an engine here: others are started by other commands."""
        traits = self._plan.traits
        return traits.containerised and traits.local and self._plan.image is not None

    def _write(self, line: str) -> None:
        self._log(line)
        self._show(line)

    def _write_all(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._write(line)


def _commit(scripts: Path) -> str:
    """Return the commit of the repository that a script or a folder of scripts lies in; "" where it is in none."""
    folder, until = scripts if scripts.is_dir() else scripts.parent, time.monotonic() + SEARCH_S
    return next(filter(None, (commit_of(place, until) for place in candidates([str(folder)], (), until))), "")

"""The lines that madengine prints of a run, in its order, for the live log and in contract mode for the screen."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from madlite.measure.lines import clone_line, duration_lines, image_lines, limit_line, result_lines, scripts_line
from madlite.measure.verdict import Observation, Verdict
from madlite.model import Action, Cause, EnvValue, Exit, RunPlan, Secret
from madlite.run.probe_inside import SEARCH_S, candidates, commit_of
from madlite.run.run_progress import RunProgress

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


class MadLog:
    """Write the lines that madengine would print of a run: `write` adds one to its live log, `show` shows it."""

    def __init__(
        self,
        plan: RunPlan,
        state: RunProgress,
        write: Callable[[str], None],
        show: Callable[[str], None],
    ) -> None:
        self._plan, self._state = plan, state
        self._log, self._show = write, show
        self._has_scripts = False

    def prepared(self) -> None:
        """Write which image there is, and of one that was built how long that took and on what it is based."""
        if self._plan.image is not None and self._state.image.ref:
            self._write_all(image_lines(self._plan.image, self._state.image))

    def opening(self) -> None:
        """Write the time limit; the screen, what the container is started with."""
        if self._plan.image is not None:
            for line in option_lines(self._plan):
                self._show(line)
        if self._plan.timeout_s is not None:
            self._write(limit_line(self._plan.timeout_s))

    def before(self, action: Action) -> None:
        """Write the lines that precede an action."""
        if action.kind in ("data", "run") and not self._has_scripts:
            self._has_scripts = True
            if self._plan.card.scripts:
                self._write(scripts_line(_commit(self._plan.workspace / self._plan.card.scripts)))

    def after(self, action: Action, ended: Exit) -> None:
        """Write what an action came to; for a failed one madengine prints nothing."""
        if ended.code == 0 and action.kind == "clone" and self._state.git_commit:
            self._write(clone_line(self._state.git_commit))
        if ended.code == 0 and action.kind == "run":
            self._write_all(duration_lines(self._state.durations_s["run"]))

    def judged(self, seen: Observation, verdict: Verdict) -> None:
        """Write what came out of a run whose actions came to their end."""
        if seen.skipped or seen.failed_action or seen.stopped is not Cause.NONE or seen.exit is None or seen.exit.code:
            return
        by_patterns = verdict.cause is Cause.ERROR_PATTERN
        name, rule = self._plan.card.name, self._plan.result_rule
        self._write_all(result_lines(name, verdict.status, verdict.metrics, rule, by_patterns=by_patterns))

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

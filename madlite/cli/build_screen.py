"""How builds are worded on the screen."""

from __future__ import annotations

from madlite.cli.screens import PlainScreen
from madlite.cli.words import duration
from madlite.run.build import Built, Done
from madlite.run.build_jobs import BuildJob
from madlite.text import printable


class BuildLines:
    """Shows builds on a screen of runs."""

    def __init__(self, screen: PlainScreen) -> None:
        self._screen = screen

    def build_started(self, job: BuildJob, position: int, total: int) -> None:
        """Name the card and its image."""
        entry = job.entry
        what = [entry.request.card.name, entry.dockerfile or entry.docker_image or "no image", entry.gpu_architecture]
        lines = [f"[{position}/{total}] " + " · ".join(part for part in what if part)]
        if job.image is not None:
            lines.append(f"      log: {entry.log_file}")
        self._screen.begin(lines)

    def build_line(self, text: str) -> None:
        """Say what the build does, all of it where asked for."""
        self._screen.phase(text)

    def build_finished(self, job: BuildJob, done: Done) -> None:
        """Say how it ended."""
        self._screen.end([f"      {line}" for line in _ending(job, done)])

    def total(self, built: Built) -> None:
        """Say how all of them ended, where there was more than one."""
        if len(built.images) + len(built.failed) > 1:
            self._screen.end([f"{len(built.images)} ready, {len(built.failed)} failed"])


def _ending(job: BuildJob, done: Done) -> list[str]:
    entry = done.entry
    if entry is None:
        hint = [f"  hint: {printable(done.hint)}"] if done.hint else []
        return [f"FAILURE {job.entry.request.card.name} {printable(done.error)}", *hint]
    if job.image is None:
        where = entry.registry_image or entry.docker_image or "each variant's own image"
        return [f"not built: {where} is used"]
    lines = [f"BUILT {entry.docker_image}" + (f" as {entry.registry_image}" if entry.registry_image else "")]
    lines += [f"  note: {printable(note)}" for note in done.notes]
    lines += [f"  FAILURE of the push: {printable(entry.push_error)}"] if entry.push_error else []
    took_s = entry.build_duration_s
    return [*lines, *([] if took_s is None else [f"  took {duration(took_s)}"])]

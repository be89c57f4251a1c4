"""The lines that madengine writes around a workload's output, which scripts grep its live logs for.

A log of a run in the workspace (`*.live.log`) has them in madengine's words, place and order; a reader of a log leaves
them out, madengine's own too: they say nothing of the training.  Words and order: madengine 1.0.0 and 2.1.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from madlite.model import Image, ImageUsed, Metric, ResultRule, Status

_STATUS = {
    Status.SUCCESS: "Status: SUCCESS (performance metrics found, no errors)",
    Status.FAILURE: "Status: FAILURE (no performance metrics)",
}
ERROR_PATTERNS = "Status: FAILURE (error patterns detected in logs)"
_OTHER_NODE = "Status: SUCCESS (worker node, no errors detected)"
_STATUSES = frozenset((*_STATUS.values(), ERROR_PATTERNS, _OTHER_NODE))
_PERFORMANCE = re.compile(r"\S+ performance is \S.*")
# a part of each of them, by which a text without any is known at once
_MARKS = (
    *("MAD_CONTAINER_IMAGE is ", "BASE DOCKER ", "MODEL GIT COMMIT is ", "MODEL REPO COMMIT: "),
    *("Build Duration: ", "Setting timeout to ", "Test Duration: ", "test_duration: ", "Status: "),
)
_SECONDS = r"\d+(?:\.\d+)?(?:e-?\d+)?"
_LINE = re.compile(
    rf"\W*(?:Build Duration: {_SECONDS} seconds|MAD_CONTAINER_IMAGE is .*|Setting timeout to \S+ seconds\.)"
    r"|BASE DOCKER (?:SHA )?is ?.*|MODEL GIT COMMIT is [0-9a-f]{40}|MODEL REPO COMMIT: .*"
    rf"|Test Duration: {_SECONDS} seconds|test_duration: {_SECONDS}s"
)


class LiveLines:
    """Leaves these lines out of one stream of a log; what a workload says in other words stays."""

    def __init__(self) -> None:
        self._after_status = False

    def without(self, lines: list[str], text: str) -> list[str]:
        """Return lines, none of them blank, without these; `text` holds whatever is in one of them."""
        if not self._after_status and not any(mark in text for mark in _MARKS):
            return lines
        return [line for line in lines if not self._is_one(line)]

    def _is_one(self, line: str) -> bool:
        """Say whether a line is one; numbers, which a script of one's own may print too, are behind their status."""
        self._after_status = line in _STATUSES or (self._after_status and bool(_PERFORMANCE.fullmatch(line)))
        return self._after_status or bool(_LINE.fullmatch(line))


def image_lines(image: Image, used: ImageUsed) -> tuple[str, ...]:
    """Return what is said of a run's image, once it is there; of one that was built for it how long that took."""
    named = f"🏷️  MAD_CONTAINER_IMAGE is {image.ref}"
    if image.dockerfile is None or image.prebuilt:
        return (named,)
    built = (f"⏱️  Build Duration: {used.build_duration_s:.2f} seconds",) if used.build_duration_s is not None else ()
    sha = used.base_digest or used.digest
    return (*built, named, f"BASE DOCKER is {image.base}", *((f"BASE DOCKER SHA is {sha}",) if sha else ()))


def limit_line(timeout_s: float) -> str:
    """Return what is said of a run's time limit."""
    return f"⏰ Setting timeout to {timeout_s:.0f} seconds."


def clone_line(commit: str) -> str:
    """Return what is said of the commit that a card's repository was cloned at."""
    return f"MODEL GIT COMMIT is {commit}"


def scripts_line(commit: str) -> str:
    """Return what is said of the commit of a card's scripts; it is empty where they are in no repository."""
    return f"MODEL REPO COMMIT:  {commit}"


def duration_lines(duration_s: float) -> tuple[str, ...]:
    """Return what is said of how long the model's script ran, in seconds."""
    return f"Test Duration: {duration_s!r} seconds", f"test_duration: {duration_s:.2f}s"


def result_lines(
    model: str, status: Status, metrics: Iterable[Metric], rule: ResultRule, *, by_patterns: bool
) -> tuple[str, ...]:
    """Return what is said of the result of a script that came to its end: status, and a line for each number.

    `by_patterns`: error patterns in the output are what made it a FAILURE.  Of a results file its name is told.
    """
    if status not in _STATUS:
        return ()
    words = ERROR_PATTERNS if by_patterns else _STATUS[status]
    told = [f"{metric.text} {metric.metric}" for metric in metrics if metric.text]
    if rule.kind == "multiple_results" and told:
        told = [f"{rule.file} "]
    return words, *(f"{model} performance is {one}" for one in told or ["None None"])

"""detect() answers from 0 to 1, and leaves the logs of others to their owners."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from madlite.model import Backend
from madlite.testing.flaws import Defect, attempt
from madlite.testing.subject import NAME_IT, Subject, lines_of

LOGS_OF_OTHERS: dict[str, str] = {
    "torchtitan": "[titan] 2026-03-02 10:00:09,100 - root - INFO - step:  1  loss:  8.1000  grad_norm:  1.4000  "
    "memory:  2.00GiB(2.50%)  tps: 1,234  tflops: 5.60  mfu: 0.70%",
    "megatron_lm": " [2026-03-02 10:00:00.100000] iteration        1/      50 | consumed samples:            8 | "
    "elapsed time per iteration (ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 123.4 | global batch size:     8 | "
    "lm loss: 1.100000E+01 | loss scale: 1.0 | grad norm: 5.000 | number of nan iterations:   0 |",
    "hf": "{'loss': 2.5, 'grad_norm': 0.5, 'learning_rate': 0.0001, 'epoch': 0.01}",
    "pytorch_fsdp": "Step: 3; TFLOP/s: 123.0; iteration time: 0.5; token per second: 1234.5",
}
"""A step's line of frameworks that plugins' logs resemble."""
_HEAD = 500  # lines, as many as a log's owner is searched for in
_NO_LOG: tuple[list[str], ...] = (
    [],
    [""],
    ["\x00\ufffd" * 100],
    ["nothing that any framework prints"],
    ["x" * 65_536],
)
_HINT = "be as sure as the lines are yours alone: 0.9 a prefix of your own, 0.5 a step line, 0.0 nothing"


def check_detection(subject: Subject) -> Iterator[Defect]:
    """Yield answers that are no certainty, and logs of others that are claimed."""
    for head in (*_NO_LOG, ["Traceback (most recent call last):"]):
        sure, wrong = _detected(subject, head, where := f"detect of {head!r:.40}")
        yield from wrong
        if sure and head in _NO_LOG:
            yield where, f"it answered {sure:g} of what is no log", _HINT
    for path, data in subject.bytes.items():
        yield from _own(subject, path.name, _head(data))
    for owner, line in LOGS_OF_OTHERS.items():
        yield from _foreign(subject, f"detect of a log of {owner}", owner, [line])
    for path, owner in subject.foreign.items():
        if path.is_file():
            yield from _foreign(subject, f"detect of log {path.name} of {owner}", owner, _head(path.read_bytes()))
        else:
            yield f"foreign log {path}", "it is not there", NAME_IT


def _head(data: bytes) -> list[str]:
    return [line.text for line in lines_of(data)[:_HEAD]]


def _detected(subject: Subject, head: Sequence[str], where: str) -> tuple[float, list[Defect]]:
    """Return the answer as a number, 0 for one that is wrong, and what is wrong with it."""
    sure, error = attempt(subject.backend.detect, head)
    if error:
        return 0.0, [(where, f"it raised {error}", "answer 0.0")]
    if isinstance(sure, bool) or not isinstance(sure, (int, float)) or not 0 <= sure <= 1:
        return 0.0, [(where, f"it answered {sure!r}", "answer a number from 0.0 to 1.0")]
    return float(sure), []


def _own(subject: Subject, name: str, head: Sequence[str]) -> Iterator[Defect]:
    sure, wrong = _detected(subject, head, f"detect of log {name}")
    yield from wrong
    for other, backend in subject.others.items():
        if sure and (theirs := _certainty(backend, head)) >= sure:
            hint = "detect your own log by a line that no other framework prints"
            yield f"log {name}", f"backend {other} is {theirs:g} sure of it, this one {sure:g}", hint


def _foreign(subject: Subject, where: str, owner: str, head: Sequence[str]) -> Iterator[Defect]:
    if owner == subject.name:
        return
    theirs = _certainty(subject.others[owner], head) if owner in subject.others else 0.5
    sure, wrong = _detected(subject, head, where)
    yield from wrong
    if sure and sure >= theirs:
        yield where, f"it answered {sure:g}, its owner {theirs:g}", _HINT


def _certainty(backend: Backend, head: Sequence[str]) -> float:
    return attempt(backend.detect, head)[0] or 0.0  # another backend's mistake is not this one's

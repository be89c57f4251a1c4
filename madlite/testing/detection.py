"""detect() answers from 0 to 1, and leaves the logs of others to their owners."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence

from madlite.model import Backend
from madlite.testing.flaws import Flaw
from madlite.testing.subject import NAME_IT, Subject, lines_of, raised

# detect() answers from 0 to 1, and leaves the logs of others to their owners.

HEADS: dict[str, tuple[str, ...]] = {
    "torchtitan": (
        "[titan] 2026-03-02 10:00:00,100 - root - INFO - Starting job: a job",
        "[titan] 2026-03-02 10:00:09,100 - root - INFO - step:  1  loss:  8.1000  grad_norm:  1.4000  "
        "memory:  2.00GiB(2.50%)  tps: 1,234  tflops: 5.60  mfu: 0.70%",
    ),
    "megatron_lm": (
        "using world size: 8, data-parallel size: 8, context-parallel size: 1, tensor-model-parallel size: 1",
        " [2026-03-02 10:00:00.100000] iteration        1/      50 | consumed samples:            8 | elapsed time per "
        "iteration (ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 123.4 | learning rate: 1.000000E-05 | "
        "global batch size:     8 | lm loss: 1.100000E+01 | loss scale: 1.0 | grad norm: 5.000 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |",
    ),
    "hf": (
        "trainable params: 1,000 || all params: 100,000 || trainable%: 1.0000",
        "{'loss': 2.5, 'grad_norm': 0.5, 'learning_rate': 0.0001, 'epoch': 0.01}",
    ),
    "pytorch_fsdp": (
        "Initing communication",
        "Step: 3; TFLOP/s: 123.0; iteration time: 0.5; token per second: 1234.5",
    ),
}


_HEAD = 500  # lines, as many as a log's owner is searched for in
_ODD: tuple[tuple[str, ...], ...] = (
    (),
    ("",),
    ("\x00\ufffd" * 100,),
    ("nothing that any framework prints",),
    ("x" * 65_536,),
    ("Traceback (most recent call last):",),
)
_HINT = "be as sure as the lines are yours alone: 0.9 a prefix of your own, 0.5 a step line, 0.0 nothing"


def check_detection(subject: Subject) -> Iterator[Flaw]:
    """Yield answers that are no certainty, and logs of others that are claimed."""
    for head in _ODD:
        sure = yield from _detected(subject, head, f"{head!r:.40}")
        if sure and head[:1] != ("Traceback (most recent call last):",):
            yield Flaw("detection", f"detect of {head!r:.40}", f"it answered {sure:g} of what is no log", _HINT)
    for path, data in subject.bytes.items():
        own = _head(data)
        sure = yield from _detected(subject, own, f"log {path.name}")
        yield from _claimed_by_others(subject, path.name, own, sure)
    for owner, begin in HEADS.items():
        yield from _foreign(subject, f"a log of {owner}", owner, begin)
    for path, owner in subject.foreign.items():
        if path.is_file():
            yield from _foreign(subject, f"log {path.name} of {owner}", owner, _head(path.read_bytes()))
        else:
            yield Flaw("detection", f"foreign log {path}", "it is not there", NAME_IT)


def _head(data: bytes) -> list[str]:
    return [line.text for line in lines_of(data)[:_HEAD]]


def _detected(subject: Subject, head: Sequence[str], where: str) -> Generator[Flaw, None, float]:
    """Yield what is wrong with the answer, and return it as a number."""
    try:
        sure = subject.backend.detect(head)
    except Exception as error:  # noqa: BLE001 - the border to the backend under test
        yield Flaw("detection", f"detect of {where}", f"it raised {raised(error)}", "answer 0.0")
        return 0.0
    if isinstance(sure, bool) or not isinstance(sure, (int, float)) or not 0 <= sure <= 1 or math.isnan(sure):
        yield Flaw("detection", f"detect of {where}", f"it answered {sure!r}", "answer a number from 0.0 to 1.0")
        return 0.0
    return float(sure)


def _claimed_by_others(subject: Subject, name: str, head: Sequence[str], sure: float) -> Iterator[Flaw]:
    """Yield that another installed backend is as sure of a log that is this one's."""
    for other, backend in subject.others.items():
        theirs = _certainty(backend, head)
        if sure and theirs >= sure:
            what = f"backend {other} is {theirs:g} sure of it, this one {sure:g}"
            hint = "detect your own log by a line that no other framework prints"
            yield Flaw("detection", f"log {name}", what, hint)


def _foreign(subject: Subject, where: str, owner: str, head: Sequence[str]) -> Iterator[Flaw]:
    if owner == subject.name:
        return
    backend = subject.others.get(owner)
    theirs = _certainty(backend, head) if backend is not None else 0.5
    sure = yield from _detected(subject, head, where)
    if sure and sure >= theirs:
        yield Flaw("detection", f"detect of {where}", f"it answered {sure:g}, its owner {theirs:g}", _HINT)


def _certainty(backend: Backend, head: Sequence[str]) -> float:
    try:
        return float(backend.detect(head))
    except Exception:  # noqa: BLE001 - another backend's mistake is not this one's
        return 0.0

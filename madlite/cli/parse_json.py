"""What a log shows, as JSON for scripts; the steps come last, one a line, however many they are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec
from msgspec.structs import asdict

from madlite.cli.parse_secrets import secrets_in
from madlite.errors import MadliteError
from madlite.model import Json, Metric, Step, Window, to_json
from madlite.run.foreign import Reading
from madlite.secrets import masked_json

_AT_ONCE = 2000  # steps


def json_pieces(reading: Reading) -> Iterator[str]:
    """Yield the text of one object, secrets masked."""
    head = masked_json(_facts(reading), secrets_in(reading))
    yield head.rstrip().removesuffix("}").rstrip() + ',\n  "steps": ['
    steps, before = iter(reading.steps), "\n"
    while some := list(islice(steps, _AT_ONCE)):
        yield before + ",\n".join(map(_step, some))
        before = ",\n"
    yield ("\n  ]" if before == ",\n" else "]") + "\n}\n"


def problem_json(name: str, problem: MadliteError) -> str:
    """Return the object of a log that could not be read."""
    from madlite.cli.main import mask

    return to_json({"log": mask(name), "error": mask(problem.message), "hint": mask(problem.hint)})


def _facts(reading: Reading) -> dict[str, Json]:
    verdict, found = reading.verdict, reading.diagnosis
    return {
        "log": reading.log,
        "backend": reading.backend or None,
        "lines": reading.lines,
        "config": reading.config,
        "training": _training(reading),
        "window": _window(verdict.window),
        "medians": {quantity.label: value for quantity, value in reading.medians.items()},
        "result": {
            "status": verdict.status,
            "cause": verdict.cause,
            "reason": verdict.reason,
            "evidence": verdict.evidence,
            "metrics": list(map(_metric, verdict.metrics)),
        },
        "performance_line": _metric(reading.line) if reading.line else None,
        "summary": reading.summary,
        "diagnosis": found,
        "ended": reading.ended,
        "suspect": list(verdict.suspect),
        "findings": list(verdict.findings),
    }


def _window(window: Window | None) -> dict[str, Json] | None:
    """Return a window with its quantity by its label, the way the medians are named."""
    return None if window is None else {**asdict(window), "quantity": window.quantity.label}


def _training(reading: Reading) -> dict[str, Json] | None:
    steps = reading.steps
    if (reach := steps.reach()) is None:
        return None
    return {
        "first_step": reach[0],
        "last_step": reach[1],
        "steps": steps.count(),
        "asked_steps": reading.asked_steps,
        "ranks": list(steps.ranks()),
        "validation_steps": steps.count("validate"),
    }


def _metric(metric: Metric) -> dict[str, Json]:
    return {"metric": metric.metric, "text": metric.text, "value": metric.value}


def _step(step: Step) -> str:
    values = {quantity.label: value for quantity, value in step.values.items()}
    plain = {"n": step.n, "rank": step.rank, "phase": step.phase, "values": values}
    return "    " + msgspec.json.encode(plain).decode()

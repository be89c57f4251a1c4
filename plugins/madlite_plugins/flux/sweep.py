"""A sweep: what is requested of one run, as one run for each combination.

The launcher's own sweep trains one after another in one log, which nobody could judge row by row.  Runs of their own
have each a window, a verdict and a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product

from msgspec.structs import replace

from madlite import RunSpec, UsageProblem

_BATCH = re.compile(r"[1-9][0-9]{0,5}")
_BACKEND = re.compile(r"[A-Za-z][\w-]{0,40}", re.ASCII)


def sweep_points(spec: RunSpec, requested: Mapping[str, str]) -> Iterator[RunSpec]:
    """Yield the runs of a RunSpec: itself, or one for each of its batch sizes and backends of torch.compile.

    Raises:
        UsageProblem: a list has something else in it, or a value for all of its runs was requested as well.
    """
    batches = _listed(spec, requested, "batch_sizes", "micro_batch", _BATCH)
    backends = _listed(spec, requested, "dynamo_backends", "compile", _BACKEND)
    variant = spec.variant
    if variant is None or not (batches or backends):
        yield spec
        return
    points = list(product(batches or [str(variant.micro_batch)], backends or [str(spec.settings["compile"])]))
    for number, (batch, backend) in enumerate(points, 1):
        yield replace(
            spec,
            variant=replace(variant, micro_batch=int(batch)),
            settings={**spec.settings, "compile": backend},
            notes=(*spec.notes, f"run {number} of a sweep of {len(points)}: micro batch {batch}, compile {backend}"),
        )


def _listed(spec: RunSpec, requested: Mapping[str, str], key: str, single: str, word: re.Pattern[str]) -> list[str]:
    text = requested.get(key, str(spec.settings[key]))
    words = [part.strip() for part in text.split(",") if part.strip()]
    example = "1,10,17" if key == "batch_sizes" else "no,inductor"
    if wrong := [part for part in words if not word.fullmatch(part)]:
        raise UsageProblem(
            f"{key} is '{text}', in which '{wrong[0]}' is no {single}", f"--set {key}={example}", keys=(key,)
        )
    if single in requested and key not in requested:
        return []  # a recipe's list gives way to the one value
    if words and single in requested:
        hint = f"--set {key}= runs {single} {requested[single]} alone"
        raise UsageProblem(
            f"{key} is '{text}', and {single} {requested[single]} was requested as well", hint, keys=(key, single)
        )
    return list(dict.fromkeys(words))

"""What a user says of a run that the script is not told, or does not read: it has to be declared to stand in a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from madlite import Finding, RunPlan, Scalar, UsageProblem, did_you_mean, one_hint
from madlite_plugins.torchrun.reads import SAMPLES, WORDS, read_words

_OF_ANY_KEY = ("--set", "--additional-context", "--recipe-file")
DECLARED = ("model", "mode", "precision", "seq_len", "micro_batch", "global_batch", "strategy")
"""What can be declared; steps need not be: a log that has fewer is a failure, and of one that has more it is noted."""


def read_declared(text: str) -> tuple[str, ...]:
    """Return the keys of a list such as `seq_len, micro_batch`.

    Raises:
        UsageProblem: one is no such key.
    """
    keys = tuple(filter(None, (part.strip().replace("-", "_") for part in text.split(","))))
    for key in keys:
        if key not in DECLARED:
            close = did_you_mean(key, DECLARED)
            hint = one_hint(close, f"keys: {', '.join(DECLARED)}")
            raise UsageProblem(
                f"declared names '{key}', which is nothing that a script trains with", hint, keys=("declared",)
            )
    return keys


def declared_findings(plan: RunPlan, base: Mapping[str, Scalar]) -> Iterator[Finding]:
    """Yield what was said of the run, beside its recipe (`base`), that its script does not read and nobody declared."""
    variant, script = plan.variant, str(plan.settings["script"])
    if variant is None:
        return
    chosen = {key: words for key, (value, words) in _settings_of(plan).items() if value != base.get(key, "")}
    read = read_words(plan)
    if script in SAMPLES and variant.precision and variant.precision not in SAMPLES[script].precisions:
        yield _precision_of_sample(variant.precision, plan)
        chosen.pop("precision", None)
    declared = () if script in SAMPLES else read_declared(str(plan.settings["declared"]))
    left = {key: words for key, words in chosen.items() if key not in (read or ()) and key not in declared}
    steps = left.pop("steps", "")
    if left:
        yield _undeclared(script, left, read)
    if (label := plan.card.training_precision) and not variant.precision and "precision" not in declared:
        yield _label(plan, label)
    if steps and not plan.origins.get("variant.steps", "").startswith("card"):
        unread = _reads_not(["steps"], checked=read is not None)
        yield Finding(
            message=f"{steps}: {script} {unread}: its log is checked against them, and the script does not get them",
            hint="--set args='…' passes a script arguments of its own",
        )


def _label(plan: RunPlan, label: str) -> Finding:
    return Finding(
        message=f"card '{plan.card.name}' ({plan.card.source}): training_precision={label} is no more than a label: "
        f"{plan.settings['script']} gets no precision",
        hint="leave it out, set precision in the recipe, or, if it trains so by itself: --set declared=precision",
        fatal=True,
        keys=("declared", "script"),
    )


def _settings_of(plan: RunPlan) -> dict[str, tuple[Scalar, str]]:
    """Return what somebody other than the backend reported about the run: its value, and how it was written."""
    found: dict[str, tuple[Scalar, str]] = {}
    values: Mapping[str, Scalar | None] = {key: getattr(plan.variant, key, None) for key in (*WORDS, "model")}
    for key, value in {**values, "strategy": plan.settings["strategy"]}.items():
        origin = plan.origins.get(f"{'settings' if key == 'strategy' else 'variant'}.{key}", "")
        if value is None or value == "" or not origin or origin.startswith(("recipe", "backend")):
            continue
        own = origin.startswith("--") and origin.partition(" ")[0] not in _OF_ANY_KEY
        found[key] = (value, f"{origin} {value}" if own else f"{origin} {key}={value}")
    return found


def _undeclared(script: str, left: Mapping[str, str], read: frozenset[str] | None) -> Finding:
    name = PurePosixPath(script).name if script in SAMPLES else script
    known = f"it reads {', '.join(word for word in WORDS if word in read)}" if read else ""
    ways = f"leave it out, or read it in the script, or, if it trains so by itself: --set declared={','.join(left)}"
    return Finding(
        message=f"{', '.join(left.values())}: {name} "
        f"{_reads_not(left, checked=read is not None)}, so the row would have values that were not run",
        hint=one_hint("leave it out" if script in SAMPLES else ways, known),
        fatal=True,
        keys=(*left, "declared", "script"),
    )


def _reads_not(keys: Mapping[str, str] | list[str], *, checked: bool) -> str:
    names = " and ".join(f"$MADLITE_{key.upper()}" for key in keys if key != "model")
    if not names:
        return "does not get the name of its model"
    return f"does not read {names}" if checked else f"is not here to be seen whether it reads {names}"


def _precision_of_sample(precision: str, plan: RunPlan) -> Finding:
    origin = plan.origins.get("variant.precision", "")
    words = f"{origin} {precision}" if origin == "--precision" else f"{origin} precision={precision}"
    script = str(plan.settings["script"])
    close = did_you_mean(precision, SAMPLES[script].precisions)
    known = f"it trains in {' and '.join(SAMPLES[script].precisions)}"
    return Finding(
        message=f"{words}: {PurePosixPath(script).name} does not support this precision",
        hint=one_hint(close, known),
        fatal=True,
        keys=("precision", "script"),
    )

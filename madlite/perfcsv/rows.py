"""A plan and its result → rows of perf.csv.  Columns and where they come from: docs/perf-csv.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from madlite.measure.performance import short_name
from madlite.measure.verdict import result_columns
from madlite.model import Cause, Metric, Result, RunPlan, Status
from madlite.perfcsv.header import STANDARD_COLUMNS, limited_cells, plain_name, truncation_text
from madlite.plan.manifest import NO_DOCKERFILE
from madlite.secrets import Redactor

# Causes found by checks of the output; after any other failure the numbers before it are no result.
_JUDGED = {
    Cause.NONE,
    Cause.NO_METRIC,
    Cause.BAD_NUMBER,
    Cause.ERROR_PATTERN,
    Cause.NAN_LOSS,
    Cause.INCOMPLETE,
    Cause.GPUS,
}
# Columns of a skipped run (madengine 1).
_SKIPPED_COLUMNS = ("n_gpus", "training_precision", "pipeline", "args", "tags", "additional_docker_run_options")
_USER_INPUT = ("pipeline", "args", "additional_docker_run_options")
# madlite's own columns, on request (docs/perf-csv.md).
CONFIGS = "configs"
"""madengine 2's column: blank, before the columns of a results file, in rows of one alone."""
OWN_COLUMNS: dict[str, Callable[[RunPlan, Result], str]] = {
    "cause": lambda plan, result: "" if result.status is Status.SUCCESS else result.code,
    "reason": lambda plan, result: result.reason,
    "suspect": lambda plan, result: "; ".join(result.suspect),
    "run": lambda plan, result: plan.id,
    "notes": lambda plan, result: "; ".join(result.findings),
}
_NO_METRIC = Metric(metric="", text="", status=Status.FAILURE)
# What launches the ranks where the plan names nothing, away from this machine (madengine 2).
_LAUNCHERS = {"slurm": "torchrun", "kubernetes": "native"}


def build_rows(
    plan: RunPlan, result: Result, *, pipeline: str, build_number: str, strict_header: bool, columns: Iterable[str] = ()
) -> tuple[dict[str, str], ...]:
    """Return one row per metric, or one blank FAILURE or SKIPPED row where the run gave none.

    A row has every standard column and the result columns that its metric brings; with `strict_header` it has no
    result columns, and the mode and precision of a rendered run are part of the model's name.  `pipeline` and
    `build_number` are the environment's `pipeline` and `BUILD_NUMBER`; without a number it is 0.  `columns` are those
    of OWN_COLUMNS to add to each row, and CONFIGS.
    """
    own = {name: OWN_COLUMNS[name](plan, result) for name in columns if name != CONFIGS}
    common = _common(plan, result, pipeline, build_number or "0")
    metrics = result.metrics if has_results(result) else ()
    if CONFIGS in columns and metrics and plan.result_rule.kind == "multiple_results":
        common[CONFIGS] = ""
    rows = (
        [_skipped(plan, common, strict_header)]
        if result.status is Status.SKIPPED
        else [_row(plan, common, metric, strict_header) for metric in metrics or (_NO_METRIC,)]
    )
    return tuple(row | own for row in rows)


def masked_rows(rows: Iterable[Mapping[str, str]], mask: Callable[[str], str]) -> tuple[dict[str, str], ...]:
    """Return rows without secrets, in the names of result columns too."""
    return tuple(masked_cells(row, mask) for row in rows)


def masked_cells(cells: Mapping[str, str], mask: Callable[[str], str]) -> dict[str, str]:
    """Return cells by name without secrets.

    Of the standard columns only those with user input are masked fully; values of a results file are masked where it is
    read.  A short secret may be part of an image's name or a status by chance: there only the shape counts.
    """
    by_shape = Redactor().text
    own = {name: by_shape(text) for name, text in cells.items() if name.strip() in STANDARD_COLUMNS}
    typed = {name: mask(text) for name, text in own.items() if name.strip() in _USER_INPUT}
    return {**own, **typed, **{mask(name): mask(text) for name, text in cells.items() if name not in own}}


def masked_metric(metric: Metric, mask: Callable[[str], str]) -> Metric:
    """Return a result without secrets in the texts of its script or results file; its number stays as it is."""
    cells = metric.columns.items()
    columns = {name if name.strip() in STANDARD_COLUMNS else mask(name): mask(text) for name, text in cells}
    return replace(metric, label=mask(metric.label), metric=mask(metric.metric), columns=columns)


def limited_metric(metric: Metric) -> Metric:
    """Return a result whose texts are plain and of the size that a cell and a name may have; its number stays."""
    label, name = short_name(plain_name(metric.label)), short_name(plain_name(metric.metric))
    return replace(metric, label=label, metric=name, columns=limited_cells(metric.columns))


def cut_of(metrics: Iterable[Metric]) -> str:
    """Return a message that names what `limited_metric` truncates; "" for nothing."""
    return truncation_text({**metric.columns, metric.label: "", metric.metric: ""} for metric in metrics)


def has_row(plan: RunPlan, result: Result) -> bool:
    """Return whether a run has a row: one that skips its model has none, unless it failed."""
    return plan.writes_row and (not plan.skip_model_run or result.status is Status.FAILURE)


def has_results(result: Result) -> bool:
    """Return whether the result's numbers count: after most failures earlier numbers are no result."""
    return result.status is Status.SUCCESS or (result.cause in _JUDGED and not result.exit_code)


def _row(plan: RunPlan, common: dict[str, str], metric: Metric, strict_header: bool) -> dict[str, str]:
    columns = {**_variant_columns(plan), **_varied(plan), **metric.columns}
    # a result may set any column but these four: MAD's rule for a file of multiple results
    judged = {
        "model": _model(plan, metric.label, columns, strict_header),
        "performance": metric.text,
        "metric": metric.metric,
        "status": metric.status.value,
    }
    cells = common | columns | judged
    return {name: text for name, text in cells.items() if name in STANDARD_COLUMNS or not strict_header}


def _skipped(plan: RunPlan, common: dict[str, str], strict_header: bool) -> dict[str, str]:
    cells = dict.fromkeys(STANDARD_COLUMNS, "") | {
        name: common[name] for name in (*_SKIPPED_COLUMNS, "gpu_architecture")
    }
    model = _model(plan, "", _variant_columns(plan), strict_header)
    return cells | {"model": model, "status": Status.SKIPPED.value}


def _model(plan: RunPlan, label: str, columns: dict[str, str], strict_header: bool) -> str:
    parts = [plan.card.name, label]
    if strict_header and _is_rendered(plan):
        parts += [columns.get("mode", ""), columns.get("precision", "")]
    return "_".join(part for part in parts if part)


def _variant_columns(plan: RunPlan) -> dict[str, str]:
    """Return the columns that distinguish the runs of one card, also for a run that ended before its first result."""
    if plan.variant is None or not _is_rendered(plan):
        return {}
    return result_columns(plan, plan.variant)


# keys whose values a rendered run's own columns have
_OWN_COLUMN = {"micro_batch": "batch_size", **{name: name for name in ("mode", "precision", "seq_len")}}


# keys by whose names the readers of results files find what is no study's point there
_KEYED = (
    "backend",
    "recipe",
    "mode",
    "precision",
    "seq_len",
    "micro_batch",
    "global_batch",
    "runtime",
    "args",
    "device",
)


def _varied(plan: RunPlan) -> dict[str, str]:
    """Return the values in which a run of a sweep differs from the others, or of tune from the default's.

    Those that the row has a column for are left out.
    """
    if plan.study is None:
        return {}
    own = _variant_columns(plan)
    values = {key: str(value) for key, value in plan.study.point.items() if _OWN_COLUMN.get(key, key) not in own}
    # by which a copy of the file, without the records, still tells the points apart
    point = ", ".join(f"{key}={text}" for key, text in sorted(values.items()) if key not in _KEYED)
    return {**values, "varied": point} if point else values


def _is_rendered(plan: RunPlan) -> bool:
    return plan.result_rule.kind == "steps"


def _common(plan: RunPlan, result: Result, pipeline: str, build_number: str) -> dict[str, str]:
    """Return every standard column, blank where this result has no value."""
    place = plan.place
    return (
        dict.fromkeys(STANDARD_COLUMNS, "")
        | {
            "n_gpus": str(place.nodes * place.gpus_per_node),
            "nnodes": str(place.nodes),
            "gpus_per_node": str(place.gpus_per_node),
            "training_precision": plan.row_precision,
            "pipeline": pipeline,
            "args": plan.args,
            "tags": ",".join(plan.card.tags),
            "git_commit": result.git_commit,
            "machine_name": plan.machine.hostname,
            "deployment_type": plan.deployment or place.where,
            "launcher": _launcher(plan) if "run" in result.durations_s else "",
            "gpu_architecture": plan.machine.architecture,
            "build_duration": _seconds(result.image.build_duration_s),
            "test_duration": _test_duration(result),
            "build_number": build_number,
            "additional_docker_run_options": plan.engine_options.extra or plan.card.additional_docker_run_options,
        }
        | _image(plan, result)
        | _data(plan, result)
    )


def _data(plan: RunPlan, result: Result) -> dict[str, str]:
    """Return where the last of the data sets came from, as madengine has it: 0 s for what was here."""
    if not plan.data:
        return {}
    last = plan.data[-1]
    counts = last.provider not in ("local", "custom") and result.data_download_s is not None
    return {
        "dataname": last.name,
        "data_provider_type": last.provider,
        "data_size": "" if last.provider == "local" else result.data_size,
        "data_download_duration": _seconds(result.data_download_s) if counts else "0",
    }


def _launcher(plan: RunPlan) -> str:
    in_what = "docker" if plan.traits.containerised else "host"
    return plan.launcher or _LAUNCHERS.get(plan.deployment or plan.place.where, in_what)


def _image(plan: RunPlan, result: Result) -> dict[str, str]:
    """Return the columns of the image; its digest is the base's, as in MAD, else its own."""
    if plan.image is None:
        return {}
    return {
        "docker_file": docker_file(plan),
        "base_docker": "" if result.cause is Cause.BUILD else plan.image.base,
        "docker_sha": (result.image.base_digest or result.image.digest).rpartition("@")[2],
        "docker_image": result.image.ref or plan.image.ref,
    }


def docker_file(plan: RunPlan) -> str:
    """Return the Dockerfile as MAD names it: from the checkout's root, whatever machine it lies on."""
    if plan.image is None or plan.image.dockerfile is None:
        return NO_DOCKERFILE if plan.image is not None and plan.image.from_context else ""
    for root in (plan.workspace, plan.card.root):
        if plan.image.dockerfile.is_relative_to(root):
            return str(plan.image.dockerfile.relative_to(root))
    return str(plan.image.dockerfile)


def _test_duration(result: Result) -> str:
    """Return how long the script ran: 0 where it failed (as madengine 2 has it), blank where it never started."""
    if "run" not in result.durations_s:
        return ""
    return _seconds(result.durations_s["run"]) if has_results(result) else "0"


def _seconds(duration_s: float | None) -> str:
    return "" if duration_s is None else repr(float(duration_s))

"""Which published figures a number can be compared with, and what differs (docs/references.md).

A figure applies only where model, precision, sequence length and GPU agree, and what it counts; the number of GPUs and
nodes and the mode too, where it states them.  Differences in batch, release and backend are named beside it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.errors import MadliteError
from madlite.files import exists, shown
from madlite.machine.products import find_product
from madlite.model import Metric, Quantity, Reference, Result, RunPlan, Status, Value
from madlite.plan.place import is_changed
from madlite.references import FILE, read_references, unit_of
from madlite.reports.series_key import record_dimensions
from madlite.secrets import Redactor
from madlite.store.record import Record, plan_fields, result_of
from madlite.text import align, percent, printable, whole_number

# One spelling of what documents, cards and recipes spell in several ways.

# what the names of cards begin with: primus_pyt_train_llama-3.1-8b, pyt_megatron_lm_train_llama-2-7b
_CARD = re.compile(r"^(?:primus_)?(?:pyt|jax)_(?:[a-z0-9]+_)*?train(?:ing)?_(?:fsdp_)?")
_FORMATS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float8": "fp8"}


@lru_cache(4096)
def model_key(name: str) -> str:
    """Return a model's name as names are compared: of `Llama 3.1 8B` and `primus_pyt_train_llama-3.1-8b` the same."""
    last = name.strip().casefold().rpartition("/")[2]
    return re.sub(r"[^a-z0-9.]", "", _CARD.sub("", last))


def precision_key(name: str) -> str:
    """Return a number format as formats are compared."""
    plain = name.strip().casefold()
    return _FORMATS.get(plain, plain)


def device_key(name: str) -> str:
    """Return a GPU's name as names are compared: the short one of an AMD product, else all of it."""
    product = find_product(name)
    plain = " ".join(name.casefold().split())
    return product.device.casefold() if product is not None and product.vendor == "AMD" else plain


def mode_key(name: str) -> str:
    """Return what is trained: a mode's name without the framework that MAD's names begin with (`HF_pretrain`)."""
    return name.strip().casefold().removeprefix("hf_")


# The list of them.


_HEAD = ("MODEL", "GPU", "GPUS", "PRECISION", "SEQ", "BATCH", "VALUE", "UNIT", "MODE", "BACKEND", "RELEASE", "FROM")


def select(
    references: Iterable[Reference], *, model: str = "", device: str = "", precision: str = ""
) -> list[Reference]:
    """Return those of a model and a GPU, by a part of their names, and of a number format."""
    return [
        reference
        for reference in references
        if model_key(model) in model_key(reference.model)
        and device_key(device) in device_key(reference.device)
        and precision_key(precision) in ("", precision_key(reference.precision))
    ]


def as_table(references: Sequence[Reference]) -> Iterator[str]:
    """Yield the lines of a table, and below it the source, date and condition that each line names by number."""
    notes: dict[str, int] = {}
    rows = [tuple(_cells(reference, notes)) for reference in references]
    yield from (printable(line) for line in align([_HEAD, *rows]))
    yield from (printable(f"[{number}] {text}") for text, number in notes.items())


def _cells(reference: Reference, notes: dict[str, int]) -> Iterator[str]:
    stated = ", ".join(filter(None, (reference.source, reference.date or "undated")))
    number = notes.setdefault(": ".join(filter(None, (stated, reference.condition))), len(notes) + 1)
    gpus = "-" if reference.gpus is None else str(reference.gpus)
    yield from (reference.model, reference.device)
    yield f"{gpus} on {reference.nodes} nodes" if reference.nodes > 1 else gpus
    yield from (reference.precision or "-", str(reference.seq_len or "-"), str(reference.micro_batch or "-"))
    yield from (number_text(reference.value), unit_of(reference.metric, reference.unit) or reference.metric)
    yield from (reference.mode or "-", reference.backend or "-", reference.release or "-", f"[{number}]")


# Where they come from: plugins, and the user's own files.

VARIABLE = "MADLITE_REFERENCES"


def references_by_origin(plugins: Plugins, folder: Path, environ: Mapping[str, str]) -> dict[str, list[Reference]]:
    """Return every published figure as its source is stated, by the plugin or file that it is from.

    Raises:
        UsageProblem: one of the user's files cannot be used.
    """
    of_plugins = ((f"plugin {name}", references) for name, references in plugins.references().items())
    of_files = ((name, read_references(file)) for name, file in _own_files(folder, environ))
    return {origin: [*references] for origin, references in (*of_plugins, *of_files)}


def load_references(plugins: Plugins, folder: Path, environ: Mapping[str, str]) -> list[Reference]:
    """Return every published figure, those of plugins first, then those of the user's own files.

    The source of these names the file, which a workload may have written.

    Raises:
        UsageProblem: one of the user's files cannot be used.
    """
    found = [reference for references in plugins.references().values() for reference in references]
    for name, file in _own_files(folder, environ):
        found += [replace(reference, source=f"{reference.source} in {name}") for reference in read_references(file)]
    return found


def _own_files(folder: Path, environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield the file of the working folder where there is one, and those that the environment names, each by name."""
    if exists(folder / FILE):
        yield FILE, folder / FILE
    named = map(Path, filter(None, environ.get(VARIABLE, "").split(os.pathsep)))
    yield from ((shown(file), file) for file in named)


# Matching.


class Match(Value, frozen=True):
    """A published figure that a number can be compared with; `differences` are what differs all the same."""

    reference: Reference
    differences: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Whose figure it is: the document and its date."""
        return ", ".join(filter(None, (self.reference.source, self.reference.date)))


class Measured(Value, frozen=True):
    """What is known of the run that a number is from; a blank or None is not known.

    `device` is the GPU's short name as result rows have it, `product` its full one.  `gpus` are those of all nodes.
    `attention` is how its figures in TFLOP/s count the work of attention, `columns` are result columns beyond these.
    """

    model: str
    device: str
    precision: str = ""
    seq_len: int | None = None
    gpus: int | None = None
    nodes: int | None = None
    mode: str = ""
    backend: str = ""
    micro_batch: int | None = None
    global_batch: int | None = None
    release: str = ""
    product: str = ""
    attention: str = ""
    columns: Mapping[str, str] = {}


def matches_of(references: Iterable[Reference], run: Measured) -> tuple[Match, ...]:
    """Return the published figures that apply to a run, whatever they count, the nearest first."""
    found = [
        Match(reference=reference, differences=tuple(_differences(reference, run)))
        for reference in references
        if applies(reference, run)
    ]
    found.sort(key=lambda match: match.reference.date, reverse=True)
    return tuple(sorted(found, key=lambda match: len(match.differences)))


def matches_for(references: Iterable[Reference], metric: str, run: Measured) -> tuple[Match, ...]:
    """Return the published figures that apply to a run and count what a metric counts, the nearest first."""
    return tuple(match for match in matches_of(references, run) if counts_same(match.reference, metric, ""))


def applies(reference: Reference, run: Measured) -> bool:
    """Return whether all agrees that has to."""
    return (
        bool(model_key(run.model))
        and model_key(reference.model) == model_key(run.model)
        and bool(run.precision)
        and precision_key(reference.precision) == precision_key(run.precision)
        and _same_length(reference, run)
        and device_key(reference.device) in {device_key(name) for name in (run.device, run.product) if name}
        and reference.nodes == run.nodes
        and reference.gpus in (None, run.gpus)
        and (not reference.mode or mode_key(reference.mode) == mode_key(run.mode))
    )


def _same_length(reference: Reference, run: Measured) -> bool:
    """Return whether sequences are as long; a model of pictures has none, and one of tokens has one even if unknown."""
    of_tokens = unit_of(reference.metric, reference.unit) == Quantity.TOKENS_PER_S_PER_GPU.unit
    return reference.seq_len == run.seq_len and not (of_tokens and run.seq_len is None)


def counts_same(reference: Reference, metric: str, unit: str) -> bool:
    """Return whether a metric counts what a reference does: by its unit, or by its name where no unit is known."""
    own, theirs = unit_of(metric, unit), unit_of(reference.metric, reference.unit)
    return own == theirs if own or theirs else metric == reference.metric


def _differences(reference: Reference, run: Measured) -> Iterator[str]:
    """Yield what the reference states and the run has otherwise: `batch 3, here 4`."""
    for name, published, here in stated_otherwise(reference, run):
        text = f"{published} attention counted" if name == "attention" else f"{name} {published}"
        yield f"{text}, here {here or 'unknown'}"


def stated_otherwise(reference: Reference, run: Measured) -> Iterator[tuple[str, str, str]]:
    """Yield what the reference states and the run has otherwise: a name, what is published, and the run's own."""
    pairs: list[tuple[str, object, object]] = [
        ("batch", reference.micro_batch, run.micro_batch),
        ("global batch", reference.global_batch, run.global_batch),
        ("release", reference.release, run.release),
        ("backend", reference.backend, run.backend),
        *((name, text, run.columns.get(name, "")) for name, text in reference.columns.items()),
    ]
    for name, published, here in pairs:
        if published not in (None, "", here):
            yield name, str(published), str(here or "")
    of_tflops = unit_of(reference.metric, reference.unit) == Quantity.TFLOPS_PER_GPU.unit
    if of_tflops and reference.attention and run.attention and reference.attention != run.attention:
        yield "attention", reference.attention, run.attention


# A success beside the published figure that is nearest to it.


_OF_SCRIPT = ("mode", "precision", "seq_len", "batch_size")  # columns of MAD's results files


class Figure(Value, frozen=True):
    """A number of a run to compare: `name` is what to call it, "" for the run's headline."""

    value: float
    name: str = ""


def of_plan(plan: RunPlan, result: Result) -> tuple[Measured, Result]:
    """Return what is known of a run that ended, and its result, as far as that is about one model and precision."""
    return of_record(Record(status=result.status, **plan_fields(plan)), result)


def of_record(record: Record, result: Result | None = None) -> tuple[Measured, Result]:
    """Return the same of a run's record; `result` is where the record has none yet.

    The sizes are those of its variant, of a card's own script those that its first result names.  A model of which a
    setting changed the shape is none that anyone has published.
    """
    result, variant = result or result_of(record), record.variant
    first = result.metrics[0] if result.metrics else None
    columns = dict(first.columns) if first is not None else {}
    run = replace(
        of_dimensions(record_dimensions(record)),
        product=record.architecture,
        attention=result.compute.attention if result.compute is not None else "",
        columns=columns,
    )
    if variant is not None:
        model = "" if is_changed(record.origins) else variant.model or run.model
        return replace(run, model=model, release=variant.release), result
    if first is None:
        return run, result
    of_first = tuple(metric for metric in result.metrics if _origin(metric) == _origin(first))
    own = replace(
        run,
        model=first.label or run.model,
        mode=columns.get("mode", ""),
        precision=columns.get("precision", ""),
        seq_len=whole_number(columns.get("seq_len", "")),
        micro_batch=whole_number(columns.get("batch_size", "")),
    )
    return own, replace(result, metrics=of_first)


def of_dimensions(known: Mapping[str, str]) -> Measured:
    """Return what is known by the dimensions of a series alone, as of a results file without its runs."""
    values: dict[str, Any] = {name: known[name] for name in ("model", "device", "precision", "mode", "backend")}
    numbers = ("seq_len", "gpus", "nodes", "micro_batch", "global_batch")
    values |= {name: whole_number(known[name]) for name in numbers}
    return Measured(**values)


def _origin(metric: Metric) -> tuple[str, dict[str, str]]:
    """Return which run of a script a result is from."""
    return metric.label, {name: metric.columns.get(name, "") for name in _OF_SCRIPT}


def compared_text(plugins: Plugins, folder: Path, environ: Mapping[str, str], measured: tuple[Measured, Result]) -> str:
    """Return how a run's success compares with the nearest published figure; "" where none applies.

    A file of the user's that cannot be used is named in its place: the run has its row all the same.
    """
    try:
        references = load_references(plugins, folder, environ)
    except MadliteError as error:
        return f"not compared with published figures: {error.message}"
    return Redactor().text(comparison(references, *measured))


def comparison(references: Iterable[Reference], run: Measured, result: Result) -> str:
    """Return a success in percent of the published figure that is nearest to it; "" where none applies.

    `98.4 % of published 542.94 TFLOP/s/GPU (README v25.2, MI300X; batch 3, here 4)`.  Of several as near, that of the
    run's headline comes first.  A figure in TFLOP/s is compared with what the framework itself printed; where it prints
    none, with madlite's own, which is said.
    """
    pairs = [(match, figure) for match in matches_of(references, run) if (figure := figure_for(match, result))]
    if not pairs:
        return ""
    match, figure = min(pairs, key=lambda pair: (len(pair[0].differences), bool(pair[1].name)))
    return _sentence(match, figure, suspect=bool(result.suspect))


def figure_for(match: Match, result: Result) -> Figure | None:
    """Return the number of a result that counts what a reference does; None where there is none.

    That of the reference's own metric comes first, as MAD's `TFLOPS_per_gpu`, which published tables have.
    """
    reference = match.reference
    same = [
        metric
        for metric in result.metrics
        if metric.value is not None and counts_same(reference, metric.metric, metric.unit)
    ]
    good = [metric for metric in same if metric.status is Status.SUCCESS]
    if not good:
        return _own_tflops(reference, result)
    found = next((metric for metric in good if metric.metric == reference.metric), good[-1])
    headline = result.metrics[-1 if result.window is not None else 0]
    return Figure(value=found.value or 0.0, name="" if found is headline else found.metric)


def _own_tflops(reference: Reference, result: Result) -> Figure | None:
    """Return the run's floating-point work: as the framework printed it in the window, else by madlite's formula."""
    compute, unit = result.compute, Quantity.TFLOPS_PER_GPU.unit
    if compute is None or unit_of(reference.metric, reference.unit) != unit:
        return None
    if compute.framework_tflops_per_gpu:
        return Figure(value=compute.framework_tflops_per_gpu, name=f"{unit} of the framework")
    return Figure(value=compute.tflops_per_gpu, name=f"{unit} by madlite's formula")


def _sentence(match: Match, figure: Figure, *, suspect: bool) -> str:
    reference = match.reference
    unit = unit_of(reference.metric, reference.unit) or reference.metric
    what = f"{number_text(figure.value)} {figure.name} is " if figure.name else ""
    where = "; ".join((f"{reference.source}, {reference.device}", *match.differences))
    doubt = "; the number is suspect" if suspect else ""
    part = percent(figure.value / reference.value)
    return f"{what}{part} of published {number_text(reference.value)} {unit} ({where}){doubt}"


def number_text(value: float) -> str:
    """Return a figure as documents print it: `542.94`, `9,484`."""
    text = f"{value:,.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text

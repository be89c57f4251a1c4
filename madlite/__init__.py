"""madlite: from a MAD tag to a trusted row of perf.csv. These are the public names; plugins import nothing else.

A name is imported when it is first used, so that `madlite --help` stays quick.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own takes long to import; checkers know the name

if TYPE_CHECKING:
    from madlite.backends.base import PatternReader, TemplateBackend
    from madlite.backends.loader import LazyBackend
    from madlite.backends.log_formats import read_log_formats, step_format
    from madlite.backends.recipe_book import RecipeBook, bare_name, read_book
    from madlite.backends.recipes import FEW, RecipeBackend, few_steps
    from madlite.backends.step_lines import (
        NUMBER,
        Missed,
        Spans,
        StepPattern,
        number,
        number_or_none,
        rank_before,
        step_pattern,
        world_before,
    )
    from madlite.cancellation import interruptible, when_stopped
    from madlite.errors import (
        CatalogError,
        CheckFailed,
        ExitCode,
        MadliteError,
        PluginError,
        RuntimeProblem,
        UsageProblem,
        did_you_mean,
        nearest_words,
        one_hint,
    )
    from madlite.failure_rules import read_failure_rules
    from madlite.files import check_writable, output_lines, read_inside, read_output, writing_named
    from madlite.hookspecs import hookimpl
    from madlite.model import (
        PROBE_BYTES,
        QUANTITIES,
        STEPS_APART,
        Action,
        Architecture,
        Asset,
        Backend,
        Card,
        Cause,
        Chunk,
        Completed,
        EffectiveConfig,
        Ended,
        Event,
        Exit,
        Exported,
        Exporter,
        ExportOptions,
        ExportRow,
        FailureRule,
        FileTemplate,
        Finding,
        Gpu,
        Image,
        ImageUsed,
        JobOutcome,
        Json,
        Knob,
        Line,
        Machine,
        MadMetric,
        Metric,
        Phase,
        Place,
        Problem,
        Quantity,
        Reader,
        Reference,
        Request,
        Result,
        ResultRule,
        RunPlan,
        RunSpec,
        Runtime,
        Say,
        Scalar,
        Secret,
        Session,
        Shape,
        Sink,
        Status,
        Step,
        Study,
        Summary,
        Traits,
        TreeCards,
        Unread,
        Variant,
    )
    from madlite.platforms.host.runtime import CommandRuntime
    from madlite.rank_labels import is_label, without_label
    from madlite.references import read_references
    from madlite.reports.export import rewriting_named
    from madlite.secrets import reveal
    from madlite.store.mounts import container_mounts, make_mounts
    from madlite.text import ANY_NUMERAL, escape_formula, is_foreign

__version__ = "0.1.0"

__all__ = [
    "ANY_NUMERAL",
    "NUMBER",
    "Action",
    "Architecture",
    "Asset",
    "Backend",
    "Card",
    "CatalogError",
    "Cause",
    "CheckFailed",
    "Chunk",
    "CommandRuntime",
    "Completed",
    "RunSpec",
    "EffectiveConfig",
    "Ended",
    "Event",
    "Exit",
    "ExitCode",
    "ExportOptions",
    "ExportRow",
    "Exported",
    "Exporter",
    "FEW",
    "FailureRule",
    "FileTemplate",
    "Finding",
    "Gpu",
    "Image",
    "ImageUsed",
    "JobOutcome",
    "Json",
    "Knob",
    "LazyBackend",
    "Line",
    "Machine",
    "MadMetric",
    "MadliteError",
    "Metric",
    "Missed",
    "PROBE_BYTES",
    "PatternReader",
    "Phase",
    "Place",
    "PluginError",
    "Problem",
    "QUANTITIES",
    "Quantity",
    "Reader",
    "RecipeBackend",
    "RecipeBook",
    "Reference",
    "Request",
    "Result",
    "ResultRule",
    "RunPlan",
    "Runtime",
    "RuntimeProblem",
    "STEPS_APART",
    "Say",
    "Scalar",
    "Secret",
    "Session",
    "Shape",
    "Sink",
    "Spans",
    "Status",
    "Step",
    "StepPattern",
    "Summary",
    "TemplateBackend",
    "Study",
    "Traits",
    "TreeCards",
    "Unread",
    "UsageProblem",
    "Variant",
    "__version__",
    "bare_name",
    "check_writable",
    "container_mounts",
    "did_you_mean",
    "escape_formula",
    "few_steps",
    "hookimpl",
    "interruptible",
    "is_foreign",
    "make_mounts",
    "nearest_words",
    "is_label",
    "number",
    "number_or_none",
    "one_hint",
    "output_lines",
    "rank_before",
    "read_book",
    "read_failure_rules",
    "read_inside",
    "read_log_formats",
    "read_output",
    "read_references",
    "reveal",
    "rewriting_named",
    "step_format",
    "step_pattern",
    "when_stopped",
    "without_label",
    "world_before",
    "writing_named",
]

_HOMES = {
    "backends.base": "PatternReader TemplateBackend",
    "backends.log_formats": "read_log_formats step_format",
    "backends.step_lines": "NUMBER Missed Spans StepPattern number number_or_none rank_before step_pattern"
    " world_before",
    "cancellation": "interruptible when_stopped",
    "errors": "CatalogError CheckFailed ExitCode MadliteError PluginError RuntimeProblem UsageProblem"
    " did_you_mean nearest_words one_hint",
    "failure_rules": "read_failure_rules",
    "hookspecs": "hookimpl",
    "rank_labels": "is_label without_label",
    "references": "read_references",
    "text": "ANY_NUMERAL escape_formula is_foreign",
    "backends.recipe_book": "RecipeBook bare_name read_book",
    "backends.lazy": "LazyBackend",
    "backends.recipes": "FEW RecipeBackend few_steps",
    "files": "check_writable output_lines read_inside read_output writing_named",
    "reports.export": "rewriting_named",
    "platforms.host.runtime": "CommandRuntime",
    "secrets": "reveal",
    "store.mounts": "container_mounts make_mounts",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'madlite' has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names.split()), "model")
    return getattr(import_module(f"madlite.{home}"), name)

"""madlite: from a MAD tag to a trusted row of perf.csv. These are the public names; plugins import nothing else.

A name is imported when it is first used, so that `madlite --help` stays quick.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own takes long to import; checkers know the name

if TYPE_CHECKING:
    from madlite.backend import NUMBER, PatternReader, StepPattern, TemplateBackend, number, step_pattern
    from madlite.errors import (
        CatalogError,
        CheckFailed,
        ExitCode,
        MadliteError,
        PluginError,
        RuntimeProblem,
        UsageProblem,
    )
    from madlite.failure_rules import read_failure_rules
    from madlite.hookspecs import hookimpl
    from madlite.recipe_book import RecipeBook, read_book
    from madlite.recipes import FEW, RecipeBackend, bare_name, few_steps
    from madlite.types import (
        Action,
        Architecture,
        Asset,
        Backend,
        Card,
        Draft,
        EffectiveConfig,
        Ended,
        Event,
        Exit,
        FailureRule,
        FileTemplate,
        Finding,
        Gpu,
        Image,
        ImageUsed,
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
        Runtime,
        Scalar,
        Secret,
        Session,
        Shape,
        Status,
        Step,
        Summary,
        TreeCards,
        Variant,
    )

__version__ = "0.1.0"

__all__ = [
    "NUMBER",
    "Action",
    "Architecture",
    "Asset",
    "Backend",
    "Card",
    "CatalogError",
    "CheckFailed",
    "Draft",
    "EffectiveConfig",
    "Ended",
    "Event",
    "Exit",
    "ExitCode",
    "FEW",
    "FailureRule",
    "FileTemplate",
    "Finding",
    "Gpu",
    "Image",
    "ImageUsed",
    "Line",
    "Machine",
    "MadMetric",
    "MadliteError",
    "Metric",
    "PatternReader",
    "Phase",
    "Place",
    "PluginError",
    "Problem",
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
    "Scalar",
    "Secret",
    "Session",
    "Shape",
    "Status",
    "Step",
    "StepPattern",
    "Summary",
    "TemplateBackend",
    "TreeCards",
    "UsageProblem",
    "Variant",
    "__version__",
    "bare_name",
    "few_steps",
    "hookimpl",
    "number",
    "read_book",
    "read_failure_rules",
    "step_pattern",
]

_HOMES = {
    "backend": "NUMBER PatternReader StepPattern TemplateBackend number step_pattern",
    "errors": "CatalogError CheckFailed ExitCode MadliteError PluginError RuntimeProblem UsageProblem",
    "failure_rules": "read_failure_rules",
    "hookspecs": "hookimpl",
    "recipe_book": "RecipeBook read_book",
    "recipes": "FEW RecipeBackend bare_name few_steps",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'madlite' has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names.split()), "types")
    return getattr(import_module(f"madlite.{home}"), name)

"""The backend: what a card or --set says of a script → its run, and how its log is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from madlite import (
    FileTemplate,
    Finding,
    Machine,
    Quantity,
    Reader,
    Request,
    ResultRule,
    RunPlan,
    RunSpec,
    Scalar,
    UsageProblem,
    Variant,
    bare_name,
    read_book,
    step_format,
)
from madlite_plugins.nodes import TorchrunBackend, node_findings
from madlite_plugins.torchrun.checks import findings
from madlite_plugins.torchrun.declared import declared_findings, read_declared
from madlite_plugins.torchrun.ranks import is_first_node, ranks_of
from madlite_plugins.torchrun.reader import OwnReader, Scale, detect
from madlite_plugins.torchrun.readers import READERS
from madlite_plugins.torchrun.reads import SAMPLES
from madlite_plugins.torchrun.step_format import choose_headline, misspelt, on, read_keys

_NO_SCRIPT = "--set script=train.py, a file of this folder, or '--set script=-m package.module'"
_SHARED = "its speeds are of the whole job (per_gpu=false): they are divided by the number of ranks"


class Torchrun(TorchrunBackend):
    """Runs a script of the workspace, and reads its log by the pattern or the JSON keys that the user states."""

    name = "torchrun"
    book = Path(__file__).with_name("recipes.toml")
    template = "torchrun/run.sh.j2"

    def expand(self, request: Request, machine: Machine) -> Sequence[RunSpec]:
        """Return the one run of the script.

        Raises:
            UsageProblem: no script is named, or nothing states how a step of its log is read.
        """
        requested = {key: value for key, value in request.settings.items() if key != "mode"}  # which can be any word
        requested.setdefault("recipe", _recipe_of(request))
        specs = super().expand(replace(request, settings=requested), machine)
        return [_fitted(spec, request) for spec in specs]

    def result_rule(self) -> ResultRule:
        """Return the rule of a script that nothing is known of; `expand` puts in what its user says."""
        return ResultRule(kind="steps", loss_expected=False, printed_on="first")

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Find a script that is not there, ranks that do not fit, and settings of the run that it does not read."""
        base = read_book(self.book).values(str(plan.settings["recipe"]), plan.machine.device)
        return (*node_findings(plan, self.result_node(plan)), *findings(plan), *declared_findings(plan, base))

    def result_node(self, plan: RunPlan) -> int | None:
        """Return the first node: most scripts print on rank 0 alone; a known framework may on the last."""
        return plan.place.nodes - 1 if _printed_on(plan.settings) == "last" else 0

    def detect(self, head: Sequence[str]) -> float:
        """Recognise JSON objects that have a step and a number we know, unsurely."""
        return detect(head)

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a fresh reader; of a foreign log it reads JSON objects."""
        if plan is None:
            return OwnReader()
        if known := READERS.get(str(plan.settings["reader"])):
            return known.reader(plan)
        text, keys = str(plan.settings["step"]), read_keys(str(plan.settings["json_keys"]))
        return OwnReader(
            step_format(text, "step").reader(plan) if text else None,
            prefix=str(plan.settings["json_prefix"]),
            keys=keys,
            end_mark=str(plan.settings["end_mark"]),
            mark_decides=(plan.variant is None or plan.variant.steps is None) and is_first_node(plan),
            scale=_scale(plan),
            prints=is_first_node(plan),
        )


def _recipe_of(request: Request) -> str:
    given = request.card.recipe
    return (str(given.get("name", "")) if isinstance(given, dict) else given) or "script"


def _fitted(spec: RunSpec, request: Request) -> RunSpec:
    """Return the RunSpec with the result that its user's words make, and the files that its script needs."""
    settings: dict[str, Scalar] = {key: request.settings.get(key, value) for key, value in spec.settings.items()}
    variant = spec.variant or Variant(model="")
    try:
        script, (headline, with_loss) = _choose(settings, variant, request)
        declared = read_declared(str(settings["declared"]))
    except UsageProblem as problem:  # what is missing may be there by another name
        raise _misspelt(request, settings) or problem from None
    return replace(
        spec,
        variant=replace(variant, model=variant.model or bare_name(request.card)),
        templates=(*spec.templates, *_sample(script)),
        result_rule=replace(
            _rule(headline, with_loss), end_mark=str(settings["end_mark"]), printed_on=_printed_on(settings)
        ),
        chosen=tuple(key for key in spec.chosen if key != "mode"),
        declared=declared if script not in SAMPLES else (),
        tag_args=True,
        runtimes=("docker", "host"),
        notes=(*spec.notes, *(() if on(settings["per_gpu"]) else (_SHARED,))),
    )


def _choose(settings: Mapping[str, Scalar], variant: Variant, request: Request) -> tuple[str, tuple[Quantity, bool]]:
    """Return the script, and what its steps give as the result."""
    script = str(settings["script"])
    if not script:
        raise UsageProblem(f"card '{request.card.name}' names no script to run", _NO_SCRIPT, keys=("script",))
    return script, choose_headline(settings, sized=_is_sized(variant, request.settings))


def _misspelt(request: Request, settings: Mapping[str, Scalar]) -> UsageProblem | None:
    """Return that a key which was given is none, where it is nearly one."""
    known = (*settings, *Variant.__struct_fields__)
    of_card = request.card.recipe if isinstance(request.card.recipe, dict) else {}
    for key, meant in misspelt(request.settings, known):
        whose = f"card '{request.card.name}' has" if key in of_card else "this run has"
        hint = f"did you mean {meant}?   madlite explain TAG --all shows every key"
        return UsageProblem(f"{whose} no key '{key}' to set", hint, keys=(key,))
    return None


def _sample(script: str) -> tuple[FileTemplate, ...]:
    """Return the script that comes with madlite, where it is the one that runs."""
    name = script.removeprefix("{folder}/")
    return (FileTemplate(path=name, template=f"torchrun/{name}", raw=True),) if script in SAMPLES else ()


def _rule(headline: Quantity, with_loss: bool) -> ResultRule:
    metric = headline.name
    return ResultRule(
        kind="steps", headline=headline, headline_metric=metric, loss_expected=with_loss, printed_on="first"
    )


def _printed_on(settings: Mapping[str, Scalar]) -> Literal["first", "last"]:
    known = READERS.get(str(settings["reader"]))
    return known.printed_on if known else "first"


def _is_sized(variant: Variant, requested: Mapping[str, str]) -> bool:
    """Return whether sequence length and batch are stated, by the recipe or whoever asked."""
    of_recipe = {"seq_len": variant.seq_len, "micro_batch": variant.micro_batch, "global_batch": variant.global_batch}
    stated = {key for key, value in of_recipe.items() if requested.get(key) or value}
    return "seq_len" in stated and len(stated) > 1


def _scale(plan: RunPlan) -> Scale:
    """Return what the script's numbers are made per GPU by."""
    ranks, variant = ranks_of(plan), plan.variant or Variant(model="")
    sequences = variant.global_batch / ranks if variant.global_batch else float(variant.micro_batch or 0)
    shared = 1 if on(plan.settings["per_gpu"]) else ranks
    return Scale(ranks=ranks, shared=shared, tokens=sequences * (variant.seq_len or 0))

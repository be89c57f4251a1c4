"""The backend: which runs a card stands for, what they need, and what speaks against them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite import (
    Asset,
    Card,
    Draft,
    Finding,
    Machine,
    Reader,
    RecipeBackend,
    Request,
    ResultRule,
    RunPlan,
    Variant,
)
from madlite_plugins.primus import reader as log
from madlite_plugins.primus.checks import findings
from madlite_plugins.primus.precision import is_mislabelled, split_words, trained_precision
from madlite_plugins.primus.rules import FRAMEWORKS, result_rule

TREE = "tree"  # the recipe of cards made of config files
FEW = 3  # steps of warm-up where a file trains for ten
_ATOMICS = ("PRIMUS_TURBO_ATTN_V3_ATOMIC_FP32", "NVTE_CK_IS_V3_ATOMIC_FP32")
_STAND_IN = 1000  # for a size that the config file alone knows


class Primus(RecipeBackend):
    """Starts Primus's config files in the images of v25.8 to v26.6; reads the logs of them all."""

    name = "primus"
    book = Path(__file__).with_name("recipes")
    template = "primus/run.sh.j2"
    launcher = "primus"

    def expand(self, request: Request, machine: Machine) -> Sequence[Draft]:
        """Return a draft per run, without those that would train in another precision than they are called by.

        Such a run is there where somebody asks for its precision: then the checks tell of it.

        Raises:
            UsageProblem: no recipe fits.
        """
        drafts = [_fitted(draft, request) for draft in super().expand(request, machine)]
        if request.settings.get("precision") or request.settings.get("config"):
            return drafts
        honest = [draft for draft in drafts if not _wrong(draft)]
        notes = tuple(_left_out(draft) for draft in drafts if _wrong(draft))
        return [replace(draft, notes=(*draft.notes, *notes)) for draft in honest] or drafts

    def env(self, card: Card, variant: Variant, machine: Machine) -> Mapping[str, str]:
        """Return the book's variables, and those that make attention's backward pass quick on MI300X and MI325X."""
        more = dict.fromkeys(_ATOMICS, "1") if machine.architecture == "gfx942" else {}
        return {**super().env(card, variant, machine), **more}

    def result_rule(self) -> ResultRule:
        """Return the rule of most runs; `expand` gives each draft its own."""
        return result_rule("megatron")

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Find what Primus would refuse, and what would make the number another one's."""
        variant = plan.variant
        if variant and plan.settings["recipe"] == TREE:  # what such a card leaves open its config file says
            sizes = ("seq_len", "micro_batch", "steps")
            variant = replace(variant, **{name: getattr(variant, name) or _STAND_IN for name in sizes})
        return (*super().check(replace(plan, variant=variant)), *findings(plan))

    def assets(self, plan: RunPlan) -> Iterable[Asset]:
        """Return the tokenizer's repository, and the weights that a post-training starts from."""
        repo = str(plan.settings["tokenizer"])
        gated = repo.startswith("meta-llama/")
        if repo:
            yield Asset(kind="tokenizer", ref=repo, gated=gated)
        if repo and plan.settings["suite"] == "posttrain":
            yield Asset(kind="model", ref=repo, gated=gated)

    def recognise(self, head: Sequence[str]) -> float:
        """Recognise Primus's prefix and its launchers' lines."""
        return log.recognise(head)

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a fresh reader."""
        return log.PrimusReader(plan)


def _fitted(draft: Draft, request: Request) -> Draft:
    """Return a draft with its framework's result rule, and with the steps that its card's config file has."""
    card = request.card.recipe if isinstance(request.card.recipe, dict) else {}
    values: dict[str, object] = {**draft.settings, **card, **request.settings}
    framework, of_tree = str(values["framework"]), values["recipe"] == TREE or card.get("name") == TREE
    draft = replace(draft, result_rule=result_rule(framework, bool(draft.settings["averages"]), of_tree))
    if draft.variant is None or not of_tree:
        return draft
    if framework not in FRAMEWORKS:
        return replace(draft, variant=replace(draft.variant, steps=None))
    few = str(values.get("steps", "")) == "10"
    return replace(draft, variant=replace(draft.variant, warmup_steps=FEW if few else draft.variant.warmup_steps))


def _wrong(draft: Draft) -> bool:
    return draft.variant is not None and is_mislabelled(draft.variant.precision, draft.settings)


def _left_out(draft: Draft) -> str:
    config, flags = str(draft.settings["config"]), str(draft.settings["flags"])
    trained = trained_precision(config, split_words(flags))
    precision = draft.variant.precision if draft.variant else ""
    return f"{precision} is left out: the file of its documented command, {config}, trains in {trained}"

"""The backend: which runs a card stands for, what they need, and what speaks against them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite import Asset, Card, Finding, Machine, Reader, Request, ResultRule, RunPlan, RunSpec, UsageProblem, Variant
from madlite_plugins.nodes import TorchrunBackend, loss_node
from madlite_plugins.primus import reader as log
from madlite_plugins.primus.checks import findings
from madlite_plugins.primus.passed import OPTIONS
from madlite_plugins.primus.precision import is_mislabelled, split_words, trained_precision
from madlite_plugins.primus.rules import FRAMEWORKS, attention_of, foreign_rule, result_rule
from madlite_plugins.primus.tree import TREE
from madlite_plugins.tokenizers import REPOSITORY, TOKENIZER_FILES
from madlite_plugins.torchtitan.backend import C4_PART

FEW = 3  # steps of warm-up where a file trains for ten
_ATOMICS = ("PRIMUS_TURBO_ATTN_V3_ATOMIC_FP32", "NVTE_CK_IS_V3_ATOMIC_FP32")
_BARE = ("v25.10", "v25.11")  # whose document's commands set no variables
_ZERO_BY_PRIMUS = ("HSA_NO_SCRATCH_RECLAIM", _ATOMICS[0])  # by examples/run_pretrain.sh, where nobody has set them
_OTHERWISE = "otherwise"  # of a recipe: what MAD's script has in place of the document's values
_STAND_IN = 1000  # for a size that the config file alone knows


class Primus(TorchrunBackend):
    """Starts Primus's config files in the images of v25.8 to v26.6; reads the logs of them all."""

    name = "primus"
    book = Path(__file__).with_name("recipes")
    template = "primus/run.sh.j2"
    files = {"fetch.py": "fetch.py", "make_assets.py": "torchtitan/make_assets.py"}
    launcher = "primus"
    planned_options = OPTIONS

    def expand(self, request: Request, machine: Machine) -> Sequence[RunSpec]:
        """Return a RunSpec per run, without those that would train in another precision than they are called by.

        Such a run is there where somebody requests its precision: then the checks report it.

        Raises:
            UsageProblem: no recipe fits.
        """
        specs = [_fitted(spec, request, machine) for spec in super().expand(_without_mode(request), machine)]
        requested = request.settings
        if requested.get("precision") or requested.get("config"):
            return specs
        honest = [spec for spec in specs if not _wrong(spec, requested)]
        notes = tuple(_left_out(spec, requested) for spec in specs if _wrong(spec, requested))
        return [replace(spec, notes=(*spec.notes, *notes)) for spec in honest] or specs

    def env(self, card: Card, variant: Variant, machine: Machine) -> Mapping[str, str]:
        """Return the book's variables, and those that make attention's backward pass quick on MI300X and MI325X."""
        more = dict.fromkeys(_ATOMICS, "1") if machine.architecture == "gfx942" else {}
        return {**super().env(card, variant, machine), **more}

    def result_rule(self) -> ResultRule:
        """Return the rule of a log that somebody else made, of any framework; `expand` gives each RunSpec its own."""
        return foreign_rule()

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Find what Primus would refuse, and what would make the number another one's."""
        variant = plan.variant
        if variant and plan.settings["recipe"] == TREE:  # what such a card leaves open its config file says
            sizes = ("seq_len", "micro_batch", "steps")
            variant = replace(variant, **{name: getattr(variant, name) or _STAND_IN for name in sizes})
        return (*super().check(replace(plan, variant=variant)), *findings(plan))

    def result_node(self, plan: RunPlan) -> int | None:
        """Return the last node, where Megatron's last rank prints the iterations; of torchtitan the loss's."""
        return loss_node(plan) if plan.settings["framework"] == "torchtitan" else plan.place.nodes - 1

    def assets(self, plan: RunPlan) -> Iterable[Asset]:
        """Return the tokenizer's repository, the weights that a post-training starts from, and data that is no mock."""
        repo, posttrain = str(plan.settings["tokenizer"]), plan.settings["suite"] == "posttrain"
        gated = repo.startswith("meta-llama/")
        if REPOSITORY.fullmatch(repo):  # no folder
            yield Asset(kind="tokenizer", ref=repo, gated=gated, files=TOKENIZER_FILES)
            if posttrain:
                yield Asset(kind="model", ref=repo, gated=gated)
        mock = str(plan.settings["mock_data"]).lower()
        if plan.settings["framework"] == "torchtitan" and mock == "false" and plan.settings["recipe"] != TREE:
            yield Asset(kind="dataset", ref="allenai/c4", files=(C4_PART,), hint="--mock-data, which needs none")
        elif posttrain or mock != "true":
            hint = "Primus fetches what the file names" + ("" if posttrain else "; --mock-data needs none")
            yield Asset(kind="dataset", ref=f"of {plan.settings['config']}", source="made", hint=hint)

    def detect(self, head: Sequence[str]) -> float:
        """Recognise Primus's prefix and its launchers' lines."""
        return log.detect(head)

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a fresh reader."""
        return log.PrimusReader(plan)


def _card_values(request: Request) -> Mapping[str, object]:
    """Return what a card sets itself, with its recipe's name; a tree's card sets what its config file does."""
    given = request.card.recipe
    return given if isinstance(given, dict) else {"name": given}


def _is_of_tree(request: Request) -> bool:
    return (request.settings.get("recipe") or _card_values(request).get("name")) == TREE


def _without_mode(request: Request) -> Request:
    """Return a request without the mode that a tree's card has, since the recipe of all of them has one alone.

    Raises:
        UsageProblem: another is requested.
    """
    if not _is_of_tree(request):
        return request
    requested, own = request.settings.get("mode", ""), str(_card_values(request).get("mode", "pretrain"))
    if requested and requested.casefold() not in (own.casefold(), own.partition("/")[0].casefold()):
        what = f"the config file of card '{request.card.name}' is one for {own}, not for {requested}"
        raise UsageProblem(what, keys=("mode",))
    return replace(request, settings={key: value for key, value in request.settings.items() if key != "mode"})


def _fitted(spec: RunSpec, request: Request, machine: Machine) -> RunSpec:
    """Return a RunSpec with its framework's result rule; of a tree's card with what its config file sets or leaves out.

    A value that nothing says is a text, since it is neither true nor false.
    """
    card, of_tree = _card_values(request), _is_of_tree(request)
    values: dict[str, object] = {**spec.settings, **card, **request.settings}
    framework = str(values["framework"])
    variant = spec.variant or Variant(model="")
    rule = result_rule(framework, bool(spec.settings["averages"]), of_tree)
    rule = replace(rule, attention=attention_of(framework, variant.model, variant.release))
    notes = (*spec.notes, *_differences(spec, request, variant.release, machine))
    settings = {key: value for key, value in spec.settings.items() if key != _OTHERWISE}
    spec = replace(spec, result_rule=rule, notes=notes, settings=settings)
    if spec.variant is None or not of_tree:
        return spec
    variant = replace(spec.variant, mode=str(card.get("mode", spec.variant.mode)))
    of_file = tuple(key for key, origin in request.origins.items() if origin == "card")  # as the config file has it
    spec = replace(spec, declared=of_file)
    if "mock_data" not in card:
        spec = replace(spec, settings={**spec.settings, "mock_data": ""})
    if framework not in FRAMEWORKS:
        return replace(spec, variant=replace(variant, steps=None))
    few = str(values.get("steps", "")) == "10"
    return replace(spec, variant=replace(variant, warmup_steps=FEW if few else variant.warmup_steps))


def _differences(spec: RunSpec, request: Request, release: str, machine: Machine) -> Iterator[str]:
    """Yield in what MAD's script and AMD's document differ, of which a run can follow one alone."""
    if spec.settings["framework"] == "torchtitan" and release in _BARE:
        names = _ZERO_BY_PRIMUS if machine.architecture == "gfx942" else _ZERO_BY_PRIMUS[:1]
        yield (
            f"{' and '.join(names)}: 1 where you set nothing, as in MAD's script; the document's command sets nothing, "
            "and Primus takes 0 then (--set env.NAME=0)"
        )
    if spec.settings[_OTHERWISE] and "flags" not in request.settings:
        yield f"batch and flags are the document's; MAD's script trains with {spec.settings[_OTHERWISE]}"


def _wrong(spec: RunSpec, requested: Mapping[str, str]) -> bool:
    return spec.variant is not None and is_mislabelled(spec.variant.precision, {**spec.settings, **requested})


def _left_out(spec: RunSpec, requested: Mapping[str, str]) -> str:
    config, flags = str(spec.settings["config"]), requested.get("flags", str(spec.settings["flags"]))
    trained = trained_precision(config, split_words(flags))
    precision = spec.variant.precision if spec.variant else ""
    return f"{precision} is left out: the file of its documented command, {config}, trains in {trained}"

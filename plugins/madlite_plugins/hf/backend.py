"""The backend: which runs a card stands for, what they need, and what speaks against them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite import (
    Asset,
    FileTemplate,
    Finding,
    Machine,
    Reader,
    Request,
    ResultRule,
    RunPlan,
    RunSpec,
    UsageProblem,
    Variant,
)
from madlite_plugins.hf import rules
from madlite_plugins.hf.assets import hub_assets
from madlite_plugins.hf.checks import findings
from madlite_plugins.hf.modes import LORA, mode_of, requested_values
from madlite_plugins.hf.reader import HuggingFaceReader, detect
from madlite_plugins.hf.script_checks import script_findings
from madlite_plugins.micro_step_plans import windows_left, with_half_warmup
from madlite_plugins.micro_steps import ACCUMULATION
from madlite_plugins.nodes import NODE_SETTINGS, TorchrunBackend

_OF_MAD = ("recipe", "recipe_device", "published_gpus", "script", "accumulation", "seed", "mad_commit", *NODE_SETTINGS)
_OF_MAD_ALONE = ("script", "mad_commit")
_RECLAIMS = "scratch_reclaim"  # of the book's releases: their LoRA runs did not have HSA_NO_SCRATCH_RECLAIM
_TEMPLATES = (
    FileTemplate(path="run.sh", template="hf/train_llama.sh.j2"),
    FileTemplate(path="train_llama.json", template="hf/train_llama.json.j2"),
)
# what MAD's script exports before it trains with Hugging Face's libraries
_MAD_ENV = {
    "ROCBLAS_USE_HIPBLASLT": "1",
    "DISABLE_ADDMM_CUDA_LT": "0",
    "HIP_FORCE_DEV_KERNARG": "1",
    "TORCH_NCCL_HIGH_PRIORITY": "0",
    "GPU_MAX_HW_QUEUES": "8",
}
_NO_WANDB = {"WANDB_DISABLED": "true"}


class HuggingFace(TorchrunBackend):
    """Runs train.py, or MAD's train_llama.py; reads their logs and any Trainer's."""

    name = "hf"
    book = Path(__file__).with_name("recipes")
    template = "hf/run.sh.j2"
    files = {
        "train.json": "hf/train.json.j2",
        "accelerate.yaml": "hf/accelerate.yaml.j2",
        **{name: f"hf/{name}" for name in ("train.py", "train_model.py", "train_data.py", "train_lines.py")},
        **{name: f"hf/{name}" for name in ("pack.py", "packages.py")},
        "fetch.py": "fetch.py",
    }

    def expand(self, request: Request, machine: Machine) -> Sequence[RunSpec]:
        """Return a draft per run, each with the settings and the files of its script.

        Raises:
            UsageProblem: no recipe fits, or the mode that was asked for is not what the settings train.
        """
        asked = request.settings.get("mode", "")
        chooses = not self._named(request)  # a recipe's mode follows its settings, so it is compared afterwards
        settings = {key: value for key, value in request.settings.items() if chooses or key != "mode"}
        drafts = super().expand(replace(request, settings=settings), machine)
        return [_fitted(_called(draft, request, asked), request, machine) for draft in drafts]

    def result_rule(self) -> ResultRule:
        """Return the rule of a log that somebody else made; `expand` gives each draft its own."""
        return rules.foreign_rule()

    def check_variant(self, plan: RunPlan, variant: Variant) -> Iterable[Finding]:
        """Find what the run's script or its packages would refuse, or measure under a wrong name."""
        return script_findings(plan, variant) if _is_mad_s(plan) else findings(plan, variant)

    def check_steps(self, plan: RunPlan, variant: Variant) -> Iterable[Finding]:
        """Find too few steps, or of MAD's script a part of a step."""
        return windows_left(plan, variant) if _is_mad_s(plan) else super().check_steps(plan, variant)

    def result_node(self, plan: RunPlan) -> int | None:
        """Return the first node, whose first rank prints our lines; MAD's script draws its bar on every node."""
        return None if _is_mad_s(plan) else 0

    def assets(self, plan: RunPlan) -> Iterable[Asset]:
        """Return what is fetched from the hub: nothing for a random model and made-up tokens."""
        return () if _is_mad_s(plan) else hub_assets(plan)

    def detect(self, head: Sequence[str]) -> float:
        """Recognise our own lines, else train_llama.py's or the Trainer's dictionaries."""
        return detect(head)

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a fresh reader, which knows how many micro-steps make a step of MAD's script."""
        return HuggingFaceReader(int(plan.settings["accumulation"]) if plan and _is_mad_s(plan) else ACCUMULATION)


def _is_mad_s(plan: RunPlan) -> bool:
    return bool(plan.settings.get("script"))


def _called(draft: RunSpec, request: Request, asked: str) -> RunSpec:
    """Return the draft with the mode of what it trains, which is what was `asked` for."""
    if draft.variant is None:
        return draft
    own = mode = draft.variant.mode
    if not draft.settings["script"]:
        mode = mode_of(own, requested_values(draft, request))
    if asked and asked.casefold() != mode.casefold():
        what = f"recipe '{draft.settings['recipe']}' of backend 'hf' runs mode {mode} with these settings, not {asked}"
        hint = "leave --mode out, or set method and model_id to what it means; --set recipe=NAME is another recipe"
        raise UsageProblem(what, hint)
    if mode == own:
        return draft
    note = f"mode {mode}, not the recipe's {own}: that is what method and model_id train"
    return replace(draft, variant=replace(draft.variant, mode=mode), notes=(*draft.notes, note))


def _fitted(draft: RunSpec, request: Request, machine: Machine) -> RunSpec:
    """Return the draft with what its script takes: settings of the other one would not reach it."""
    variant = draft.variant or Variant(model="")
    env, notes = _mad_env(draft, machine), (*draft.notes, *_notes(draft, request))
    draft = replace(draft, env={**draft.env, **env}, notes=notes)
    if draft.settings["script"]:
        kept = {key: value for key, value in draft.settings.items() if key in _OF_MAD}
        rule = rules.train_llama_rule()
        env = {**_NO_WANDB, **env}  # what MAD exports, and no more
        draft = replace(draft, settings=kept, env=env, templates=_TEMPLATES, launcher="accelerate", result_rule=rule)
        return with_half_warmup(draft, request)
    kept = {key: value for key, value in draft.settings.items() if key not in (*_OF_MAD_ALONE, _RECLAIMS)}
    launcher = "accelerate" if _is_accelerated(draft, request) else "torchrun"
    return replace(draft, settings=kept, launcher=launcher, result_rule=rules.own_rule(variant.mode))


def _is_accelerated(draft: RunSpec, request: Request) -> bool:
    """Say whether accelerate starts the ranks, as the template does: for all but DDP in other precisions than FP8."""
    precision = draft.variant.precision if draft.variant else ""
    values = {"precision": precision, **requested_values(draft, request)}
    return values["strategy"] != "ddp" or str(values["precision"]).upper() == "FP8"


def _mad_env(draft: RunSpec, machine: Machine) -> dict[str, str]:
    """Return what MAD's script exports for a tag's run on AMD GPUs; nothing of a recipe that was asked for by name."""
    variant = draft.variant
    if variant is None or machine.vendor != "AMD" or not variant.release:
        return {}
    lora = variant.mode == LORA and not draft.settings[_RECLAIMS]
    return {**_MAD_ENV, **_NO_WANDB, **({"HSA_NO_SCRATCH_RECLAIM": "1"} if lora else {})}


def _notes(draft: RunSpec, request: Request) -> Iterator[str]:
    """Yield what a user of MAD's tag should know of its run here."""
    release = draft.variant.release if draft.variant else ""
    if release and not draft.image:
        yield (
            f"release {release} names no image: --runtime host uses the packages that are installed, --image REF "
            "an image that has them"
        )
    own = [str(draft.settings[key]) for key in ("model_id", "dataset") if key not in request.settings]
    if release and any(own):
        yield f"reads {' and '.join(own)} from the hub, as MAD does"

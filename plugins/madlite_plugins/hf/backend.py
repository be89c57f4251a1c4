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
    planned_options = {
        **{
            "max_steps": "steps",
            "per_device_train_batch_size": "micro_batch",
            "bf16": "precision",
            "fp16": "precision",
        },
        "gradient_accumulation_steps": "accumulation",
        # of train_llama.py
        **{
            "total_steps": "steps",
            "batch_size": "micro_batch",
            "max_seq_len": "seq_len",
            "grad_acc_steps": "accumulation",
        },
    }

    def expand(self, request: Request, machine: Machine) -> Sequence[RunSpec]:
        """Return a RunSpec per run, each with the settings and the files of its script.

        Raises:
            UsageProblem: no recipe fits, or the mode that was requested is not what the settings train.
        """
        requested = request.settings.get("mode", "")
        chooses = not self._named(request)  # a recipe's mode follows its settings, so it is compared afterwards
        settings = {key: value for key, value in request.settings.items() if chooses or key != "mode"}
        specs = super().expand(replace(request, settings=settings), machine)
        return [_fitted(_called(spec, request, requested), request, machine) for spec in specs]

    def result_rule(self) -> ResultRule:
        """Return the rule of a log that somebody else made; `expand` gives each RunSpec its own."""
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


def _called(spec: RunSpec, request: Request, requested: str) -> RunSpec:
    """Return the RunSpec with the mode of what it trains, which is what was `requested` for."""
    if spec.variant is None:
        return spec
    own = mode = spec.variant.mode
    if not spec.settings["script"]:
        mode = mode_of(own, requested_values(spec, request))
    if requested and requested.casefold() != mode.casefold():
        what = (
            f"recipe '{spec.settings['recipe']}' of backend 'hf' runs mode {mode} with these settings, not {requested}"
        )
        hint = "leave --mode out, or set method and model_id to what it means; --set recipe=NAME is another recipe"
        raise UsageProblem(what, hint, keys=("mode", "method", "model_id"))
    if mode == own:
        return spec
    note = f"mode {mode}, not the recipe's {own}: that is what method and model_id train"
    return replace(spec, variant=replace(spec.variant, mode=mode), notes=(*spec.notes, note))


def _fitted(spec: RunSpec, request: Request, machine: Machine) -> RunSpec:
    """Return the RunSpec with what its script takes: settings of the other one would not reach it."""
    variant = spec.variant or Variant(model="")
    env, notes = _mad_env(spec, machine), (*spec.notes, *_notes(spec, request))
    spec = replace(spec, env={**env, **spec.env}, notes=notes)  # a set that was named goes before
    if spec.settings["script"]:
        own_settings = {key: value for key, value in spec.settings.items() if key in _OF_MAD}
        rule = rules.train_llama_rule()
        env = {**_NO_WANDB, **env}  # what MAD exports, and no more
        spec = replace(
            spec, settings=own_settings, env=env, templates=_TEMPLATES, launcher="accelerate", result_rule=rule
        )
        return with_half_warmup(spec, request)
    own_settings = {key: value for key, value in spec.settings.items() if key not in (*_OF_MAD_ALONE, _RECLAIMS)}
    launcher = "accelerate" if _is_accelerated(spec, request) else "torchrun"
    return replace(spec, settings=own_settings, launcher=launcher, result_rule=rules.own_rule(variant.mode))


def _is_accelerated(spec: RunSpec, request: Request) -> bool:
    """Return whether accelerate starts the ranks, as in the template: for all but DDP in other precisions than FP8."""
    precision = spec.variant.precision if spec.variant else ""
    values = {"precision": precision, **requested_values(spec, request)}
    return values["strategy"] != "ddp" or str(values["precision"]).upper() == "FP8"


def _mad_env(spec: RunSpec, machine: Machine) -> dict[str, str]:
    """Return what MAD's script exports for a tag's run on AMD GPUs; nothing of a recipe that was requested by name."""
    variant = spec.variant
    if variant is None or machine.vendor != "AMD" or not variant.release:
        return {}
    lora = variant.mode == LORA and not spec.settings[_RECLAIMS]
    return {**_MAD_ENV, **_NO_WANDB, **({"HSA_NO_SCRATCH_RECLAIM": "1"} if lora else {})}


def _notes(spec: RunSpec, request: Request) -> Iterator[str]:
    """Yield what a user of MAD's tag should know of its run here."""
    release = spec.variant.release if spec.variant else ""
    if release and not spec.image:
        yield (
            f"release {release} names no image: --runtime host uses the packages that are installed, --image REF "
            "an image that has them"
        )
    own = [str(spec.settings[key]) for key in ("model_id", "dataset") if key not in request.settings]
    if release and any(own):
        yield f"reads {' and '.join(own)} from the hub, as MAD does"

"""The backend: which runs a card stands for, what they need, and what speaks against them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from madlite import (
    Asset,
    Draft,
    FileTemplate,
    Finding,
    Machine,
    MadMetric,
    Quantity,
    Reader,
    Request,
    RunPlan,
    UsageProblem,
    Variant,
    bare_name,
    read_book,
)
from madlite_plugins.nodes import TorchrunBackend, loss_node
from madlite_plugins.torchtitan.checks import findings, lines_left
from madlite_plugins.torchtitan.reader import END_MARK, TRAIN, TorchtitanReader, recognise

_SHIM = "cpu_shim/sitecustomize.py"
_CHECKOUT = "run it inside a checkout of ROCm/MAD"
# what else MAD's script does for a tag, with other trainers
OTHER_MODES = {
    "pyt_train_llama-3.1-8b": ("finetune_fw", "finetune_lora", "HF_pretrain"),
    "pyt_train_llama-3.1-70b": ("finetune_fw", "finetune_lora", "HF_finetune_lora"),
}
# card and release → which backend has the program that MAD, or the image's README, runs
_OTHER_BACKENDS = {("pyt_train_llama-3.1-8b", release): "pytorch_fsdp" for release in ("25.2", "25.3")}


class Torchtitan(TorchrunBackend):
    """Runs torchtitan from a TOML file that madlite renders for its era; reads the logs of every version."""

    name = "torchtitan"
    book = Path(__file__).with_name("recipes")
    template = "torchtitan/run.sh.j2"
    files = {
        "train.toml": "torchtitan/train.toml.j2",
        "check_config.py": "torchtitan/check_config.py",
        "make_assets.py": "torchtitan/make_assets.py",
    }
    step = TRAIN
    end_mark = END_MARK
    mad_metrics = (
        MadMetric(metric="tok_per_s_per_gpu", quantity=Quantity.TOKENS_PER_S_PER_GPU),
        MadMetric(metric="TFLOPS_per_gpu", quantity=Quantity.TFLOPS_PER_GPU),
    )

    def expand(self, request: Request, machine: Machine) -> Sequence[Draft]:
        """Return a draft per run.

        Raises:
            UsageProblem: no recipe fits, or the mode is one of MAD's script alone.
        """
        others = OTHER_MODES.get(bare_name(request.card), ())
        mode = request.settings.get("mode", "")
        if mode.casefold() in (other.casefold() for other in others):
            raise UsageProblem(
                f"mode {mode} of {request.card.name} is none of torchtitan's, which pretrains",
                f"{_CHECKOUT}; modes here: {', '.join(_modes(bare_name(request.card)))}",
            )
        try:
            drafts = [_fitted(draft, machine) for draft in super().expand(request, machine)]
        except UsageProblem as problem:
            raise _with_other_backend(problem, request) from None
        return [msgspec.structs.replace(one, notes=(*one.notes, *_notes(one, request, others))) for one in drafts]

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Find what torchtitan would refuse, or what would make the number worthless."""
        return (*super().check(plan), *findings(plan))

    def result_node(self, plan: RunPlan) -> int | None:
        """Return the node that knows the loss, where a pipeline spans nodes."""
        return loss_node(plan)

    def check_steps(self, plan: RunPlan, variant: Variant) -> Iterable[Finding]:
        """Find too few log lines for a steady window."""
        if int(plan.settings["log_freq"]) > 1:
            return lines_left(plan, variant)
        return super().check_steps(plan, variant)

    def assets(self, plan: RunPlan) -> Iterable[Asset]:
        """Return what is fetched: nothing where text and tokenizer are made up, given, or in the image."""
        return () if plan.settings["script"] else _fetched(plan)

    def recognise(self, head: Sequence[str]) -> float:
        """Recognise the prefix of every line, a step line, else how it failed to start."""
        return recognise(head)

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a fresh reader."""
        return TorchtitanReader()


def _fitted(draft: Draft, machine: Machine) -> Draft:
    """Return the draft with the files that its start needs: an image's own script, or ours with a shim for a CPU."""
    if draft.settings["script"]:
        start = FileTemplate(path="run.sh", template="torchtitan/script.sh.j2")
        return msgspec.structs.replace(draft, templates=(start,))
    if machine.vendor != "CPU":
        return draft
    shim = FileTemplate(path=_SHIM, template=f"torchtitan/{_SHIM}", raw=True)
    return msgspec.structs.replace(draft, templates=(*draft.templates, shim))


def _notes(draft: Draft, request: Request, others: Sequence[str]) -> Iterator[str]:
    """Yield what a user of MAD's tag should know of its run here."""
    settings, release = draft.settings, draft.variant.release if draft.variant else ""
    if others:
        yield f"of this tag's modes torchtitan runs pretrain alone; for {', '.join(others)} {_CHECKOUT}"
    if settings["script"]:
        yield f"release {release} trains with its image's own {settings['script']}: only sizes and log_freq reach it"
    elif not settings["mock_data"] and request.settings.get("mock_data", "false").casefold() in ("false", "no", "0"):
        whose = f"{settings['tokenizer_repo']}'s"
        yield f"reads c4 and {whose} tokenizer from the hub, as MAD does; --mock-data needs neither"
    if release and not draft.image:
        yield (
            f"release {release} names no image: --runtime host uses the torchtitan that is installed "
            "(torchtitan==0.2.2, for FP8 torchao), --image REF one that has it"
        )


def _with_other_backend(problem: UsageProblem, request: Request) -> UsageProblem:
    """Return a refusal that names the backend which trains the card's model in the release that was asked for."""
    release = request.settings.get("release", "").casefold().removeprefix("v")
    other = _OTHER_BACKENDS.get((bare_name(request.card), release))
    if other is None:
        return problem
    hint = f"MAD trained it with another program then: --backend {other}; {problem.hint}"
    return UsageProblem(problem.message, hint)


def _modes(card: str) -> list[str]:
    book = read_book(Torchtitan.book)
    return sorted({str(book.run_values(run, "", "")["mode"]) for run in book.runs if card in run.cards})


def _fetched(plan: RunPlan) -> Iterator[Asset]:
    settings = plan.settings
    repo = str(settings["tokenizer_repo"])
    if repo and not settings["mock_data"] and not settings["hf_assets_path"]:
        hint = "--mock-data, which needs none"
        yield Asset(kind="tokenizer", ref=repo, gated=repo.startswith("meta-llama/"), hint=hint)
    if not settings["mock_data"] and not settings["dataset_path"] and settings["dataset"] in ("", "c4"):
        yield Asset(kind="dataset", ref="allenai/c4")

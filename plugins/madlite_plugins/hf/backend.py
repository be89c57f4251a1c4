"""The backend: one recipe is one model shape with its LoRA and its training arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from madlite import Finding, MadMetric, Quantity, Reader, ResultRule, RunPlan, Variant
from madlite_plugins.hf.reader import HuggingFaceReader, recognise
from madlite_plugins.nodes import TorchrunBackend
from madlite_plugins.words import unknown_word

PRECISIONS = ("BF16", "FP32")


class HuggingFace(TorchrunBackend):
    """Runs train_lora.py, which builds a random model of the recipe's shape; reads any Trainer's log."""

    name = "hf"
    book = Path(__file__).with_name("recipes.toml")
    template = "hf/run.sh.j2"
    files = {"train.json": "hf/train.json.j2", "train_lora.py": "hf/train_lora.py"}

    def result_rule(self) -> ResultRule:
        """Return the steady window of our own step lines, and the figure that MAD takes from the Trainer."""
        return ResultRule(
            kind="steps",
            headline=Quantity.TOKENS_PER_S_PER_GPU,
            headline_metric="tokens_per_s_per_gpu",
            mad=(MadMetric(metric="train_samples_per_s", rule="summary", key="train_samples_per_second"),),
        )

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Find what the Trainer would refuse."""
        own = _findings(plan, plan.variant) if plan.variant else ()
        return (*super().check(plan), *own)

    def recognise(self, head: Sequence[str]) -> float:
        """Recognise our own step lines, else the Trainer's dictionaries."""
        return recognise(head)

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a fresh reader."""
        return HuggingFaceReader()


def _findings(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    yield from unknown_word("precision", variant.precision, PRECISIONS)
    local = (variant.micro_batch or 1) * max(1, plan.place.gpus_per_node) * plan.place.nodes
    if variant.global_batch and variant.global_batch % local:
        yield Finding(
            message=f"global batch {variant.global_batch} is no multiple of micro batch × ranks = {local}",
            hint=f"--set global_batch={max(1, variant.global_batch // local) * local}",
            fatal=True,
        )
    heads, kv_heads = int(plan.settings["heads"]), int(plan.settings["kv_heads"])
    if min(heads, kv_heads) < 1 or heads % kv_heads or int(plan.settings["hidden_size"]) % heads:
        yield Finding(
            message=f"{heads} heads fit neither hidden_size {plan.settings['hidden_size']} nor {kv_heads} kv_heads",
            hint="hidden_size is a multiple of heads, heads of kv_heads",
            fatal=True,
        )
    if not plan.place.gpus_per_node and int(plan.settings["hidden_size"]) > 1024:
        yield Finding(
            message=f"{variant.model} on a CPU takes very long and much memory", hint="--set recipe=tiny_lora"
        )

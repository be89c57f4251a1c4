"""What failures say is to be done can be done: settings that a backend has, batches that its checks accept."""

from __future__ import annotations

import re

from msgspec.structs import replace

from madlite.backends.loader import load_plugins
from madlite.backends.recipe_book import loaded_backend, read_book
from madlite.backends.recipes import OF_RUN
from madlite.measure.memory import gpu_memory_hint
from madlite.measure.steps import Steps
from madlite.model import RunPlan
from madlite.plan.fields import PLAN_KEYS, VARIANT_KEYS, canonical_key
from madlite_plugins.hf.backend import HuggingFace
from madlite_plugins.megatron_lm.backend import MegatronLM
from madlite_plugins.primus.backend import Primus
from madlite_plugins.pytorch_fsdp.backend import PytorchFsdp
from madlite_plugins.torchtitan.backend import Torchtitan
from tests.plugins import logs, primus_plans
from tests.plugins.megatron_lm_tree import plan_of
from tests.rows import each_row

PLUGINS = load_plugins(only_built_in=True)
ENGINE_KEYS = {*VARIANT_KEYS, *PLAN_KEYS, *OF_RUN}
HINTS = [(name, text) for rule in PLUGINS.failure_rules() for name in rule.backends for text in (rule.hint, rule.here)]


def test_every_setting_of_a_hint_is_one_of_the_backend():
    named = 0
    for name, text in HINTS:
        keys = {*ENGINE_KEYS, *read_book(PLUGINS.backends()[name][0].book).defaults}
        for key in re.findall(r"(?:--set |\band |, )([a-z_.]+)=", text):
            named += 1
            assert canonical_key(key) in keys or key.startswith("env."), (name, text)
    assert named > 20


def test_every_planned_option_names_a_setting_of_its_backend():
    loaded = [loaded_backend(backend) for backend, _ in PLUGINS.backends().values()]
    stated = [backend for backend in loaded if getattr(backend, "planned_options", {})]
    for backend in stated:
        keys = {*ENGINE_KEYS, "recipe", *read_book(backend.book).defaults}
        assert {canonical_key(key) for key in backend.planned_options.values()} <= keys, backend.name
    names = {backend.name for backend in stated}
    assert names == {"torchtitan", "hf", "flux", "pytorch_fsdp", "dlrm", "torchtune", "megatron_lm", "primus"}


def with_hint(plan: RunPlan) -> RunPlan:
    """Return the plan as the hint of memory that ran out wants it."""
    hint = gpu_memory_hint("out of memory", plan, Steps(), {})
    micro = re.search(r"--batch-size (\d+)", hint)
    whole = re.search(r"--set global_batch=(\d+)", hint)
    assert micro and plan.variant, hint
    sizes = {"micro_batch": int(micro[1]), **({"global_batch": int(whole[1])} if whole else {})}
    return replace(plan, variant=replace(plan.variant, **sizes))


def refused(backend, plan: RunPlan) -> list[str]:
    return [found.message for found in backend.check(plan) if found.fatal and "batch" in found.message]


@each_row(
    "changes",
    [
        {"micro_batch": 4, "global_batch": 32},
        {"micro_batch": 3, "global_batch": 48},
        {"micro_batch": 6, "global_batch": 96, "tp": 4},
        {"micro_batch": 8, "global_batch": 16, "tp": 2, "pp": 2},
        {"micro_batch": 5, "global_batch": 40},
    ],
)
def test_megatron_accepts_the_batch_that_is_told_where_memory_ran_out(changes):
    for backend, plan in (
        (MegatronLM(), plan_of("llama-3.1-8b", **changes)),
        (Primus(), primus_plans.plan("primus_pyt_megatron_lm_train_llama-3.1-8b", precision="BF16", **changes)),
    ):
        assert refused(backend, plan) == [] and refused(backend, with_hint(plan)) == []
        assert refused(backend, replace(plan, variant=replace(plan.variant, global_batch=7))), "the check looks at it"


@each_row(
    ("backend", "recipe", "changes"),
    [
        (Torchtitan(), "llama3.1_8B", {"micro_batch": 4, "global_batch": 64}),
        (PytorchFsdp(), "llama-3.1-8b-8k", {"micro_batch": 4, "global_batch": 4 * 8 * 8, "accumulation": 8}),
        (HuggingFace(), "llama3.1_8B_lora", {"micro_batch": 4, "global_batch": 64}),
    ],
)
def test_others_accept_it_too(backend, recipe, changes):
    plan = logs.plan(backend, logs.gpu_machine(8), recipe, **changes)
    assert refused(backend, plan) == [] and refused(backend, with_hint(plan)) == []

"""What is written is what runs: what a backend has no use for is refused, whoever asks for it."""

from __future__ import annotations

import types

import pytest
from msgspec.structs import replace

from madlite.backends.base import TemplateBackend
from madlite.backends.loader import Plugins
from madlite.backends.step_lines import step_pattern
from madlite.errors import UsageProblem
from madlite.hookspecs import hookimpl
from madlite.model import Card, FileTemplate, Finding, Machine, Request, RunSpec, Traits, Variant
from madlite.plan.context import Options, read_context
from madlite.run.planning import BatchInputs, plan_runs
from tests.rows import each_row

SCRIPT = """#!/usr/bin/env bash
# precision {{ variant.precision }}, {{ variant.seq_len }} tokens
exec train {{ variant.steps }}"""


class Tiny(TemplateBackend):
    name = "tiny"
    template = "run.sh.j2"
    step = step_pattern(r"step=(?P<n>\d+) tps=(?P<tokens_per_s_per_gpu>\d+)")

    def variants(self, card, machine):
        yield Variant(model="tiny", precision="BF16", seq_len=2048, micro_batch=2, steps=20)


class Two(Tiny):
    def variants(self, card, machine):
        yield Variant(model="tiny", precision="BF16", steps=20)
        yield Variant(model="tiny", mode="finetune_lora", precision="fp8", steps=10)


class Raw:
    """A backend of no base class, which puts into its variant whatever it is asked for."""

    name = "tiny"

    def claim(self, card, checkout):
        return 100

    def expand(self, request, machine):
        precision = request.settings.get("precision", "BF16")
        return [
            RunSpec(
                variant=Variant(model="x", precision=precision, steps=20),
                templates=(FileTemplate(path="run.sh", template="run.sh.j2"),),
                settings={"lr": 0.1},
            )
        ]

    def check(self, plan):
        return ()

    assets = check

    def detect(self, head):
        return 0.0

    def reader(self, plan):
        raise NotImplementedError


class FakeRuntime:
    name = "host"
    traits = Traits(containerised=False)

    def supports(self, place):
        return True

    def available(self):
        return None


@pytest.fixture
def planned(tmp_path):
    def make(
        backend=None,
        *,
        script=SCRIPT,
        context="",
        recipe="",
        overrides=(),
        args="",
        card_backend="tiny",
        asked="",
        **options,
    ):
        (tmp_path / "templates").mkdir(exist_ok=True)
        (tmp_path / "templates/run.sh.j2").write_text(script + "\n")
        made = types.ModuleType("made")
        backend = backend or Tiny()
        made.madlite_backends = hookimpl(lambda: (backend,))
        plugins = Plugins()
        plugins.register("made", made, "made", "1")
        around = BatchInputs(
            options=Options(workspace=tmp_path, output=tmp_path / "perf.csv", backend=asked, **options),
            context=read_context(None, context),
            machine=Machine(),
            plugins=plugins,
            runtimes={"docker": FakeRuntime(), "host": FakeRuntime()},
            template_root=tmp_path,
            new_run_id=lambda name: f"id-{name}",
        )
        card = Card(
            name="m",
            root=tmp_path,
            source="models.json",
            backend=card_backend,
            runtimes=("host",),
            recipe=recipe,
            args=args,
        )
        request = Request(card=card, tag="m", overrides=tuple(overrides))
        return [one.plan for one in plan_runs([request], around)]

    return make


def named(option, key, value):
    return {"named": ((option, key, value),)}


@each_row(
    ("option", "key", "value", "knows"),
    [
        ("--precision", "precision", "FP8", "it runs pretrain BF16"),
        ("--precision", "precision", "BF61", "did you mean BF16?"),
        ("--mode", "mode", "pretrai", "did you mean pretrain?"),
        ("--mode", "mode", "posttrain", "it runs pretrain BF16"),
        ("--seq-len", "seq_len", "4096", "leave it out; explain --all"),
        ("--batch-size", "micro_batch", "4", "leave it out; explain --all"),
        ("--image-release", "release", "v25.10", "leave it out; explain --all"),
    ],
)
def test_an_option_that_the_template_does_not_use_is_refused(planned, option, key, value, knows):
    with pytest.raises(UsageProblem) as refused:
        planned(**named(option, key, value))
    assert refused.value.message.startswith(f"{option} {value}") and "'tiny'" in refused.value.message
    assert knows in refused.value.hint


class Refuses(Tiny):
    """A backend that claims nothing and refuses any card, naming the keys of the plan that it is about, or none."""

    def __init__(self, keys):
        self.keys = keys

    def claim(self, card, checkout):
        return 0

    def expand(self, request, machine):
        raise UsageProblem("this cannot be run", keys=self.keys)


def test_a_problem_is_the_commands_where_it_is_about_what_the_command_set(planned):
    steps = named("--steps", "steps", "7")
    for keys, given in (
        (("steps",), steps),
        (("steps",), {"overrides": (("steps", "7"),)}),
        (("steps",), {"context": '{"settings": {"steps": 7}}'}),
        (None, steps),  # a plugin that does not say
        ((), {"asked": "tiny", "card_backend": ""}),  # nobody else would have asked this backend
    ):
        with pytest.raises(UsageProblem, match="this cannot be run"):
            planned(Refuses(keys), **given)
    for keys, given in (
        (("precision",), steps),
        (("steps",), {"recipe": {"steps": 7}}),
        ((), steps),
        (None, {}),
        (None, {"context": '{"guest_os": "UBUNTU"}'}),
        ((), {"asked": "tiny"}),  # it is the card's own all the same
    ):
        (plan,) = planned(Refuses(keys), **given)
        assert (plan.blocked.status, plan.blocked.reason) == ("FAILURE", "this cannot be run")


@each_row(
    ("given", "where"),
    [
        ({"sets": (("seq_len", "4096"),)}, "--set seq_len=4096"),
        ({"sets": (("variant.model", "Llama-3.1-405B"),)}, "--set model=Llama-3.1-405B"),
        ({"sets": (("GLOBAL_BATCH_SIZE", "64"),)}, "--set global_batch=64"),
        ({"overrides": (("mbs", "4"),)}, "--tags m: micro_batch=4"),
        ({"recipe": {"seq_len": 4096}}, "card 'm' (models.json): seq_len=4096"),
        ({"recipe": {"precision": "FP8"}}, "card 'm' (models.json): precision=FP8"),
        ({"context": '{"settings": {"seq_len": 4096}}'}, "--additional-context seq_len=4096"),
        ({"sets": (("args", "--lr 1"),)}, "--set args=--lr 1"),
    ],
)
def test_whoever_asks_for_it_is_named(planned, given, where):
    if "recipe" in given:  # the card itself, which alone is kept from starting
        (plan,) = planned(**given)
        assert where in plan.blocked.reason
        return
    with pytest.raises(UsageProblem) as refused:
        planned(**given)
    assert where in refused.value.message


@each_row(
    "given",
    [
        {},
        named("--precision", "precision", "bf16"),
        named("--mode", "mode", "Pretrain"),
        named("--batch-size", "micro_batch", "2"),
        named("--steps", "steps", "7"),
        {"sets": (("warmup_steps", "3"),)},
        {"recipe": {"seq_len": 2048, "steps": 9}},
    ],
)
def test_what_it_uses_or_runs_anyway_is_taken(planned, given):
    (plan,) = planned(**given)
    assert (plan.variant.precision, plan.variant.mode, plan.variant.micro_batch) == ("BF16", "pretrain", 2)


def test_mode_and_precision_choose_among_variants(planned):
    assert [plan.variant.steps for plan in planned(Two())] == [20, 10]
    (plan,) = planned(Two(), **named("--precision", "precision", "FP8"))
    assert (plan.variant.mode, plan.variant.precision, plan.variant.steps) == ("finetune_lora", "fp8", 10)
    (plan,) = planned(Two(), **named("--mode", "mode", "pretrain"))
    assert plan.variant.precision == "BF16"
    with pytest.raises(UsageProblem) as refused:
        planned(Two(), named=(("--mode", "mode", "pretrain"), ("--precision", "precision", "FP8")))
    assert "--precision FP8" in refused.value.message and refused.value.hint == "it runs pretrain BF16"


def test_a_variant_that_leaves_its_precision_open_takes_the_one_that_its_script_is_given(planned):
    class Open(Tiny):
        def variants(self, card, machine):
            yield Variant(model="tiny", steps=20)

    fp8 = named("--precision", "precision", "FP8")
    (plan,) = planned(Open(), script="train {{ variant.precision }}", **fp8)
    assert plan.variant.precision == "FP8"
    with pytest.raises(UsageProblem, match="--precision FP8 is nothing to backend 'tiny'"):
        planned(Open(), **fp8)


def test_a_backend_of_no_base_class_is_held_to_it_too(planned):
    with pytest.raises(UsageProblem, match="--precision FP8 is nothing") as refused:
        planned(Raw(), **named("--precision", "precision", "FP8"))
    assert "settings lr" in refused.value.hint
    (plan,) = planned(Raw(), script="train {{ variant.precision }}", **named("--precision", "precision", "FP8"))
    assert plan.variant.precision == "FP8"


ACCUMULATES = "train {{ (variant.global_batch or variant.micro_batch * nproc) // (variant.micro_batch * nproc) }}"


def test_a_count_that_is_stated_as_it_is_anyway_is_taken(planned):
    (plan,) = planned(script=ACCUMULATES, sets=(("global_batch", "2"),))
    assert plan.variant.global_batch == 2
    (plan,) = planned(script=ACCUMULATES, sets=(("global_batch", "4"),))
    assert plan.variant.global_batch == 4


class Checks(Tiny):
    def check(self, plan):
        if plan.variant.seq_len != 2048:
            yield Finding(message="this data has 2048 tokens", fatal=True)


def test_what_a_check_refuses_is_left_to_its_words_unless_nothing_is_refused(planned):
    given = named("--seq-len", "seq_len", "4096")
    (plan,) = planned(Checks(), **given)
    assert [finding.message for finding in Checks().check(plan)] == ["this data has 2048 tokens"]
    with pytest.raises(UsageProblem, match="--seq-len 4096 is nothing"):
        planned(Checks(), lint=False, **given)


class Passes(Tiny):
    def run_spec(self, request, variant, machine):
        return replace(super().run_spec(request, variant, machine), tag_args=True, settings={"cwd": ""})


PASSED = "train{% for word in args_list %} {{ word | sh }}{% endfor %}"


def test_what_a_tag_adds_reaches_a_script_that_takes_it_and_stands_in_the_row(planned):
    (plan,) = planned(Passes(), script=PASSED, args="--lr 1", overrides=(("lr", "0.01"), ("compile", None)))
    assert plan.args == plan.run_args == "--lr 1 --lr 0.01 --compile"
    (plan,) = planned(Passes(), script=PASSED, args="--lr 1", sets=(("args", "--bf16"),), overrides=(("lr", "2"),))
    assert (plan.args, plan.origins["args"]) == ("--bf16 --lr 2", "--set")
    (plan,) = planned(Passes(), script=PASSED, args="--lr 1", context='{"model_args": "--x"}')
    assert (plan.args, plan.run_args) == ("--lr 1", "--x")  # as madengine has it


def test_a_key_that_is_nearly_one_is_no_argument(planned):
    with pytest.raises(UsageProblem) as refused:
        planned(Passes(), script=PASSED, overrides=(("stesp", "3"),))
    assert "'stesp' is no key of this run, and nearly 'steps'" in refused.value.message
    assert "--set 'args=--stesp …'" in refused.value.hint

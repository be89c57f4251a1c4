"""What keeps a run from starting: every fatal finding at once, --no-lint, and gated repositories without a token."""

from __future__ import annotations

import types

import pytest
from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.errors import CheckFailed
from madlite.hookspecs import hookimpl
from madlite.model import Asset, Blocked, Cause, Finding, Status, Variant
from madlite.plan.submission import PlannedRun
from madlite.run.planning import check_plans
from tests.factories import make_plan
from tests.rows import each_row


def backend(findings=(), assets=()):
    return types.SimpleNamespace(name="b", check=lambda plan: findings, assets=lambda plan: assets)


def planned(tmp_path, backends=(), **changes):
    """Return a plan of which the command has set nothing."""
    plan = make_plan(tmp_path, **changes)
    return PlannedRun(plan=plan, backends=tuple(backends), files=(), runtime=None, requested=frozenset())


def test_every_fatal_finding_is_told_with_its_run(tmp_path):
    bad = backend([Finding(message="too big", hint="--set x=1", fatal=True), Finding(message="odd")])
    runs = [
        planned(tmp_path, [bad], variant=Variant(model="m", precision="BF16")),
        planned(tmp_path, [bad], variant=Variant(model="m", precision="FP8")),
    ]
    runs.append(planned(tmp_path, [backend()], variant=Variant(model="m", precision="FP16")))
    plans, warnings = check_plans(runs, Plugins())
    bf16, fp8, fp16 = (one.plan for one in plans)
    assert (bf16.blocked.status, bf16.blocked.cause, bf16.blocked.reason) == ("FAILURE", "prepare_failed", "too big")
    assert bf16.blocked.hint == "--set x=1; --no-lint starts it all the same"
    assert fp8.blocked == bf16.blocked and fp16.blocked is None, "the others run"
    assert warnings == ("tiny pretrain BF16: odd", "tiny pretrain FP8: odd")


def test_a_run_that_cannot_start_anyway_keeps_its_reason(tmp_path):
    engine = Blocked(status=Status.FAILURE, cause=Cause.ENGINE, reason="no engine")
    one = planned(tmp_path, [backend([Finding(message="too big", fatal=True)])], blocked=engine)
    ((kept,), _) = check_plans([one], Plugins())
    assert kept.plan.blocked == engine


def test_what_was_asked_for_keeps_the_whole_batch_from_starting(tmp_path):
    good = planned(tmp_path, [backend()])
    for keys, requested in (
        (("x",), {"x"}),
        (None, {"micro_batch"}),  # a check that does not say: of any size or setting
        ((), {"backend"}),  # another backend's problems
        ((), None),  # a plan file, of which all was requested
    ):
        found = Finding(message="too big", hint="--set x=1", fatal=True, keys=keys)
        bad = replace(planned(tmp_path, [backend([found])]), requested=requested and frozenset(requested))
        with pytest.raises(CheckFailed) as caught:
            check_plans([bad, good], Plugins())
        assert caught.value.message == "too big" and caught.value.hint == "--set x=1; --no-lint starts it all the same"
    lama = [Asset(kind="tokenizer", ref="lab/Lama", gated=True)]
    one = replace(planned(tmp_path, [backend(assets=lama)]), requested=frozenset({"x"}))
    assert "lab/Lama is a gated repository" in refusal(one).reason, "nobody asks for a token that is not there"


def test_what_no_option_decides_keeps_its_card_alone_from_starting(tmp_path):
    for keys, requested in (
        (("x",), {"y"}),
        ((), {"x", "recipe"}),
        (None, {"context.guest_os"}),
        (None, {"timeout_s"}),
    ):
        found = Finding(message="too big", fatal=True, keys=keys)
        bad = replace(planned(tmp_path, [backend([found])]), requested=frozenset(requested))
        assert refusal(bad).reason == "too big"


def refusal(one):
    """Return what keeps a plan from starting by the checks, and nothing where they find it fit."""
    ((kept,), _) = check_plans([one], Plugins())
    return kept.plan.blocked


def test_without_lint_a_fatal_finding_is_a_warning(tmp_path):
    one = planned(tmp_path, [backend([Finding(message="too big", hint="x", fatal=True)])])
    assert check_plans([one], Plugins(), lint=False) == ([one], ("too big (x)",))


def test_a_skipped_run_is_not_checked(tmp_path):
    skipped = Blocked(status=Status.SKIPPED, cause=Cause.DEPRECATED, reason="old")
    one = planned(tmp_path, [backend([Finding(message="too big", fatal=True)])], blocked=skipped)
    assert check_plans([one], Plugins()) == ([one], ())


@each_row(
    ("env", "refused"),
    [
        ({}, True),
        ({"HF_TOKEN": ""}, True),
        ({"HF_TOKEN": "t"}, False),
        ({"MAD_SECRETS_HFTOKEN": "t"}, False),
        ({"HF_HUB_OFFLINE": "1"}, False),
    ],
)
def test_a_gated_repository_needs_a_token(tmp_path, env, refused):
    lama, free = Asset(kind="tokenizer", ref="lab/Lama", gated=True), Asset(kind="tokenizer", ref="lab/free")
    one = planned(tmp_path, [backend(assets=[lama, free])], env=env)
    if refused:
        assert refusal(one).reason.startswith("lab/Lama is a gated repository")
    else:
        assert refusal(one) is None


def test_a_gated_repository_says_how_to_do_without_it(tmp_path):
    lama = Asset(kind="tokenizer", ref="lab/Lama", gated=True, hint="--mock-data")
    free = Asset(kind="tokenizer", ref="lab/free", hint="never shown")
    one = planned(tmp_path, [backend(assets=[lama, lama, free])])
    hint = refusal(one).hint
    assert hint.count("--mock-data") == 1 and "never shown" not in hint
    assert hint.startswith("export MAD_SECRETS_HFTOKEN=…, or ")


def test_a_plugins_checks_count_too(tmp_path):
    module = types.ModuleType("m")
    module.madlite_checks = hookimpl(lambda plan: [Finding(message="never", fatal=True)], specname="madlite_checks")
    plugins = Plugins()
    plugins.register("m", module, "m", "1")
    one = planned(tmp_path)
    ((kept,), _) = check_plans([one], plugins)
    assert kept.plan.blocked.reason == "never"
    assert check_plans([one], plugins, lint=False) == ([one], ("never",))

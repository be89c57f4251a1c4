"""From cards to plans: who owns a card, which runtime, one plan per Dockerfile."""

from __future__ import annotations

import types
from pathlib import Path

import msgspec
import pytest

from madlite.backends.base import TemplateBackend
from madlite.backends.loader import Plugins
from madlite.errors import PluginError, UsageProblem
from madlite.hookspecs import hookimpl
from madlite.model import Action, Card, Cause, Gpu, Machine, Problem, Request, RunSpec, Status, Traits, Variant
from madlite.plan.context import Options, read_context
from madlite.run.planning import BatchInputs, plan_runs


class Claims:
    """A backend that claims every card as highly as it is told to."""

    def __init__(self, name: str, claim: int | Exception) -> None:
        self.name, self._claim = name, claim

    def claim(self, card, checkout):
        if isinstance(self._claim, Exception):
            raise self._claim
        return self._claim

    def expand(self, request, machine):
        return [RunSpec(actions=(Action(kind="run", argv=("true",)),), image=request.card.image)]

    def check(self, plan): ...
    def assets(self, plan): ...
    def detect(self, head): ...
    def reader(self, plan): ...


class FakeRuntime:
    def __init__(self, name: str, problem: str = "") -> None:
        self.name, self._problem = name, problem
        self.traits = Traits(containerised=name != "host")

    def supports(self, place):
        return True

    def available(self):
        return Problem(where=self.name, what=self._problem) if self._problem else None

    def request(self, plan):
        return {}


@pytest.fixture
def around(tmp_path):
    def make(*backends, docker="", context="", **options):
        made = types.ModuleType("made")
        made.madlite_backends = hookimpl(lambda: backends)
        plugins = Plugins()
        plugins.register("made", made, "made", "1")
        return BatchInputs(
            options=Options(workspace=tmp_path, output=tmp_path / "perf.csv", **options),
            context=read_context(None, context),
            machine=Machine(),
            plugins=plugins,
            runtimes={"docker": FakeRuntime("docker", docker), "host": FakeRuntime("host")},
            template_root=tmp_path,
            new_run_id=lambda name: f"id-{name}",
        )

    return make


def requests(tmp_path: Path, **fields) -> list[Request]:
    return [Request(card=Card(name="m", root=tmp_path, source="models.json", **fields), tag="m")]


def one(tmp_path, surroundings, **fields):
    (planned,) = plan_runs(requests(tmp_path, **fields), surroundings)
    return planned.plan


def refused(tmp_path, surroundings, **fields):
    """Return what keeps a card from starting that nothing can be planned for."""
    plan = one(tmp_path, surroundings, **fields)
    assert plan.blocked.status is Status.FAILURE and plan.blocked.cause is Cause.PREPARE and plan.writes_row
    return plan.blocked


def test_the_highest_claim_wins_and_the_card_or_the_caller_decides_over_it(tmp_path, around):
    a, b = Claims("a", 10), Claims("b", 20)
    assert one(tmp_path, around(a, b), image="x").backend == "b"
    assert one(tmp_path, around(a, b), image="x", backend="a").backend == "a"
    assert one(tmp_path, around(a, b, backend="a"), image="x", backend="b").backend == "a"


def test_a_tie_is_an_error_that_names_both(tmp_path, around):
    assert "a and b" in refused(tmp_path, around(Claims("a", 5), Claims("b", 5), Claims("c", 1))).reason


def test_nobody_is_an_error_that_says_what_to_do(tmp_path, around):
    blocked = refused(tmp_path, around(Claims("a", 0)), scripts="scripts/x/run.sh")
    assert "scripts/x/run.sh is not in this folder" in blocked.reason and "git clone" in blocked.hint


def test_a_claim_that_raises_is_a_problem_and_the_others_are_asked(tmp_path, around):
    surroundings = around(Claims("a", ValueError("oops")), Claims("b", 1))
    assert one(tmp_path, surroundings, image="x").backend == "b"
    assert "oops" in surroundings.plugins.problems[0].what


def test_docker_is_the_default_and_an_unreachable_engine_a_failure(tmp_path, around):
    assert one(tmp_path, around(Claims("a", 1)), image="x").runtime == "docker"
    plan = one(tmp_path, around(Claims("a", 1), docker="no daemon"), image="x")
    assert plan.blocked.cause is Cause.ENGINE and "no daemon" in plan.blocked.reason


def test_host_only_for_cards_that_list_it_and_when_nothing_else_was_asked_for(tmp_path, around):
    both = {"image": "x", "runtimes": ("docker", "host")}
    assert one(tmp_path, around(Claims("a", 1)), **both).runtime == "docker"
    plan = one(tmp_path, around(Claims("a", 1), docker="no daemon"), **both)
    assert plan.runtime == "host" and plan.blocked is None and "no daemon" in plan.notes[0]
    asked = one(tmp_path, around(Claims("a", 1), docker="no daemon", runtime="docker"), **both)
    assert asked.runtime == "docker" and asked.blocked.cause is Cause.ENGINE
    assert one(tmp_path, around(Claims("a", 1)), runtimes=("docker", "host")).runtime == "host"
    with pytest.raises(UsageProblem, match="does not run on runtime 'host'"):
        plan_runs(requests(tmp_path, image="x", runtimes=("docker",)), around(Claims("a", 1), runtime="host"))


def test_one_plan_per_dockerfile_and_a_row_when_none_fits(tmp_path, around):
    (tmp_path / "docker").mkdir()
    for name, key in (("x.one", "1"), ("x.two", "1"), ("x.three", "2")):
        (tmp_path / f"docker/{name}.Dockerfile").write_text(f"# CONTEXT {{'ctx_test': '{key}'}}\nFROM a\n")
    (tmp_path / "ctx_test").write_text("1\n")
    plans = plan_runs(requests(tmp_path, dockerfile="docker/x"), around(Claims("a", 1)))
    assert [planned.plan.image.dockerfile.name for planned in plans] == ["x.one.Dockerfile", "x.two.Dockerfile"]
    plan = one(tmp_path, around(Claims("a", 1), context='{"ctx_test": "3"}'), dockerfile="docker/x")
    assert plan.blocked.cause is Cause.IMAGE and "wants ctx_test 1, here it is 3" in plan.blocked.reason
    plan = one(tmp_path, around(Claims("a", 1), image="foreign:1"), dockerfile="docker/x")
    assert plan.image.ref == "foreign:1" and plan.image.dockerfile is None
    plan = one(tmp_path, around(Claims("a", 1)), dockerfile="docker/none")
    assert "no Dockerfile docker/none.*" in plan.blocked.reason


class Shares(Claims):
    """A backend with one run of a mode, which has one setting."""

    def __init__(self, name: str, setting: str) -> None:
        super().__init__(name, 30)
        self._setting = setting

    def expand(self, request, machine):
        variant = Variant(model="m", mode=self.name)
        return [RunSpec(variant=variant, settings={self._setting: 1}, actions=(Action(kind="run", argv=("true",)),))]


def test_a_value_for_one_of_a_card_s_runs_passes_by_the_others(tmp_path, around):
    plans = around(Shares("a", "alpha"), Shares("b", "beta"), sets=(("alpha", "5"),), runtime="host")
    first, second = (one.plan for one in plan_runs(requests(tmp_path, runtimes=("host",)), plans))
    assert first.settings == {"alpha": 5} and second.settings == {"beta": 1}
    assert "alpha: for other runs of this card, not this one" in second.notes
    assert not any("alpha" in note for note in first.notes)


def test_a_value_for_no_run_of_a_card_is_refused(tmp_path, around):
    plans = around(Shares("a", "alpha"), Shares("b", "beta"), sets=(("gamma", "5"),), runtime="host")
    with pytest.raises(UsageProblem, match="'gamma'"):
        plan_runs(requests(tmp_path, runtimes=("host",)), plans)


def test_a_backend_that_breaks_on_a_card_is_named_with_its_distribution(tmp_path, around):
    class Breaks(Claims):
        def expand(self, request, machine):
            return {}["sizes"]

    for options in ({}, {"sets": (("timeout_s", "5"),)}, {"refused_as": "--sweep timeout_s=5"}):
        surroundings = around(Breaks("a", 5), sets=options.get("sets", ()))
        surroundings = msgspec.structs.replace(surroundings, refused_as=options.get("refused_as", ""))
        reason = refused(tmp_path, surroundings).reason
        assert reason == "backend 'a' (made) failed on card 'm': KeyError: 'sizes'"


def test_what_a_backend_refuses_without_keys_is_about_the_settings_that_it_was_given(tmp_path, around):
    class Picky(Claims):
        def expand(self, request, machine):
            raise UsageProblem("no weights for this card")

    assert refused(tmp_path, around(Picky("a", 5), sets=(("timeout_s", "5"),))).reason == "no weights for this card"
    with pytest.raises(UsageProblem, match="no weights"):
        plan_runs(requests(tmp_path), around(Picky("a", 5), sets=(("alpha", "5"),)))


def test_a_variable_called_like_an_option_makes_no_problem_of_a_card_the_command_s(tmp_path, around):
    context = '{"docker_env_vars": {"BACKEND": "nccl"}}'
    assert "'nosuch'" in refused(tmp_path, around(Claims("a", 5), context=context), backend="nosuch").reason


def test_a_runtime_that_breaks_is_one_that_cannot_be_used(tmp_path, around):
    class Breaks(FakeRuntime):
        def available(self):
            raise OSError("no such bus")

    surroundings = around(Claims("a", 5))
    surroundings.runtimes["docker"] = Breaks("docker")
    plan = one(tmp_path, surroundings, image="x")
    assert plan.blocked.cause is Cause.ENGINE and plan.blocked.reason == "runtime 'docker' failed: OSError: no such bus"


def test_a_runtime_that_a_plugin_changes_a_plan_to_has_to_be_there(tmp_path, around):
    changes = types.ModuleType("changes")
    changes.madlite_adjust_plan = hookimpl(lambda plan: msgspec.structs.replace(plan, runtime="slurm"))
    surroundings = around(Claims("a", 5))
    surroundings.plugins.register("changes", changes, "changes", "1")
    blocked = refused(tmp_path, surroundings, image="x")
    assert (blocked.reason, blocked.hint) == ("no runtime 'slurm'", "runtimes: docker, host")


def test_a_card_without_a_script_that_nobody_claims_can_be_run_by_nobody(tmp_path, around):
    blocked = refused(tmp_path, around(Claims("a", 0)))
    assert blocked.reason.startswith("nothing can run card 'm' here: ") and "it names no script" in blocked.reason
    assert "--backend" in blocked.hint


def test_a_backend_without_runs_for_a_card_says_so(tmp_path, around):
    class Empty(TemplateBackend):
        name = "empty"

        def variants(self, card, machine):
            return ()

    reason = refused(tmp_path, around(Empty()), backend="empty").reason
    assert reason == "backend 'empty' has nothing to run for card 'm'"
    Empty.variants = TemplateBackend.variants
    reason = refused(tmp_path, around(Empty()), backend="empty").reason
    assert "backend 'empty' does not say which variants it runs" in reason


class Picky(Claims):
    """A backend that has no runs for cards of one name, and none at all of what it does not know."""

    def expand(self, request, machine):
        if request.card.name == "bad":
            raise UsageProblem("card 'bad' has no recipe", "write one", keys=())
        if request.settings.get("mode"):
            raise UsageProblem(f"no mode {request.settings['mode']}")
        return super().expand(request, machine)


def two(tmp_path: Path, **fields) -> list[Request]:
    names = ("bad", "good")
    cards = [Card(name=name, root=tmp_path, source="models.json", image="x", **fields) for name in names]
    return [Request(card=card, tag=card.name) for card in cards]


def test_a_card_that_is_wrong_by_itself_stops_no_other(tmp_path, around):
    bad, good = (planned.plan for planned in plan_runs(two(tmp_path, n_gpus="4"), around(Picky("a", 5))))
    assert (bad.card.name, bad.blocked.reason, bad.blocked.hint) == ("bad", "card 'bad' has no recipe", "write one")
    assert bad.backend == "", "none was found to run it"
    assert (bad.workspace, bad.folder, bad.image) == (tmp_path, tmp_path / "madlite_runs/id-bad", None)
    assert (good.card.name, good.blocked) == ("good", None)


def test_its_row_has_the_gpus_it_asked_for(tmp_path, around):
    surroundings = around(Picky("a", 5))
    gpus = tuple(Gpu(index=n) for n in range(8))
    surroundings = msgspec.structs.replace(surroundings, machine=Machine(vendor="AMD", gpus=gpus))
    asked = [plan_runs(two(tmp_path, n_gpus=n), surroundings)[0].plan.place.gpus_per_node for n in ("4", "-1")]
    assert asked == [4, 8]


def test_what_was_asked_of_all_is_refused_before_anything_starts(tmp_path, around):
    for asked in ({"sets": (("mode", "typo"),)}, {"named": (("--mode", "mode", "typo"),)}):
        with pytest.raises(UsageProblem, match="^no mode typo$"):
            plan_runs(two(tmp_path), around(Picky("a", 5), **asked))
    with pytest.raises(UsageProblem, match="no runtime 'typo'"):
        plan_runs(two(tmp_path), around(Picky("a", 5), runtime="typo"))


def test_two_backends_of_one_name_concern_every_card(tmp_path, around):
    surroundings = around(Claims("a", 5))
    again = types.ModuleType("again")
    again.madlite_backends = hookimpl(lambda: [Claims("a", 5)])
    surroundings.plugins.register("again", again, "again", "1")
    with pytest.raises(PluginError, match="backend named 'a'"):
        plan_runs(requests(tmp_path, image="x"), surroundings)


class Reads(FakeRuntime):
    """A runtime that cannot read docker options with the word `bad`."""

    def request(self, plan):
        if "bad" in plan.engine_options.extra:
            raise UsageProblem(f"{plan.origins['engine_options.extra']}: no such option", "docker run --help")
        return {}


def test_docker_options_of_a_card_keep_it_alone_from_starting(tmp_path, around):
    surroundings = around(Claims("a", 5), context='{"additional_docker_run_options": "--shm-size 1g"}')
    surroundings.runtimes["docker"] = Reads("docker")
    blocked = refused(tmp_path, surroundings, image="x", additional_docker_run_options="--bad")
    assert (blocked.reason, blocked.hint) == ("card 'm': no such option", "docker run --help")
    surroundings = around(Claims("a", 5), context='{"additional_docker_run_options": "--bad"}')
    surroundings.runtimes["docker"] = Reads("docker")
    with pytest.raises(UsageProblem, match="--additional-context: no such option"):
        plan_runs(requests(tmp_path, image="x", additional_docker_run_options="--shm-size 1g"), surroundings)

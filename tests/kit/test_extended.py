"""What madlite's own backends are checked for beyond the kit, said of broken ones with what to do."""

from __future__ import annotations

import os
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from madlite import MadMetric, PatternReader, Quantity, ResultRule, RunSpec, Summary, Variant
from tests.kit.extended import MORE, ExtendedSubject, run_extended
from tests.rows import each_row
from tests.testing.good import CARD, HEAD, Good, broken, given, named, write_files

pytestmark = pytest.mark.host  # whole checks of backends


def check(backend, place, *only, **more):
    """Return what some checks find in a backend whose files are in a folder."""
    subject = ExtendedSubject(backend, [CARD], **given(place, **more))
    return [flaw for name in only for flaw in run_extended(name, subject)]


def writes(self, plan):
    Path(plan.settings["name"]).with_name("kit_left_this").write_text("x")
    return ()


def connects(self, plan):
    with socket.socket() as door:
        door.connect_ex(("127.0.0.1", 9))
    return ()


def starts(self, plan):
    subprocess.run(["true"], check=False)
    return ()


def sets(self, request, machine):
    os.environ["KIT_LEFT_THIS"] = "x"
    return Good.expand(self, request, machine)


def adds_up(self, request, machine):
    os.environ["KIT_LEFT_THIS"] += "x"
    return Good.expand(self, request, machine)


_KEPT = {"name": "a name", "lr": 0.1}


def keeps(self, request, machine):
    (draft,) = Good.expand(self, request, machine)
    return [RunSpec(variant=draft.variant, templates=draft.templates, settings=_KEPT, result_rule=draft.result_rule)]


def no_list(self, request, machine):
    return iter(Good.expand(self, request, machine))


@cache
def _gpus():
    Path("kit_asked").write_text("x")
    return 8


def asks_once(self, card, variant, machine):
    return {"name": "x", "lr": float(_gpus())}


@cache
def _token(plan_name):
    with socket.socket() as door:
        door.connect_ex(("127.0.0.1", 9))


def checks_once(self, plan):
    _token("x")
    return ()


def writes_elsewhere(self, plan):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(Path("kit_left_this").write_text, "x").result()
    return ()


_POOL = ThreadPoolExecutor(1)


def writes_in_a_thread_of_long_ago(self, plan):
    _POOL.submit(Path("kit_left_this").write_text, "x").result()
    return ()


BROKEN = {
    "members": [
        (broken(claim=lambda self, card, checkout: 0.5), "it answered 0.5", "a whole number"),
        (broken(claim=lambda self, card, checkout: -1), "it answered -1", "a whole number"),
        (broken(expand=no_list), "it answered <list_iterator", "a list of madlite.RunSpec"),
    ],
    "names": [
        (named(layers=[1]), "neither text nor number", "commas"),
        (broken(mad_metrics=(MadMetric(metric="a,b", quantity=Quantity.LOSS),)), "metric 'a,b' is no name", "perf.csv"),
        (broken(mad_metrics=2 * Good.mad_metrics), "two rows of a run would be called tok_per_s_per_gpu", "each"),
        (broken(mad_metrics=(MadMetric(metric="a", rule="summary"),)), "metric a has rule summary", "names a key"),
        (broken(files={"../up.sh": "good/train.toml.j2"}), "outside of the run's folder", ".."),
        (broken(files={"run.sh": "good/train.toml.j2"}), "two templates are written to it", "one template"),
        (
            broken(result_rule=lambda self: ResultRule(kind="steps", headline="tps")),
            "headline 'tps' is no quantity",
            "madlite.Quantity lists them",
        ),
    ],
    "results": [
        (broken(mad_metrics=(MadMetric(metric="a", rule="summary", key="Total"),)), "the figure 'Total'", "drop it")
    ],
    "purity": [
        (broken(check=writes), "writes ", "planning only reads"),
        (broken(check=connects), "socket.connect", "planning only reads"),
        (broken(assets=starts), "subprocess.Popen", "planning only reads"),
        (broken(assets=writes_elsewhere), "writes kit_left_this", "planning only reads"),
        (broken(assets=writes_in_a_thread_of_long_ago), "writes kit_left_this", "planning only reads"),
        (broken(expand=sets), "os.putenv", "planning only reads"),
        (broken(expand=adds_up), "os.putenv", "planning only reads"),
        (broken(expand=keeps), "the same question had two answers", "fresh tables"),
    ],
}
ROWS = [(name, *row) for name, rows in BROKEN.items() for row in rows]


@each_row(("name", "backend", "what", "hint"), ROWS, ids=[f"{name}: {what}" for name, _, what, _ in ROWS])
def test_what_is_wrong_is_said_with_what_to_do(tmp_path, monkeypatch, name, backend, what, hint):
    place = write_files(tmp_path)
    monkeypatch.setenv("KIT_LEFT_THIS", "")
    monkeypatch.chdir(place)
    flaws = check(backend, place, name)
    assert any(what in str(flaw) and hint in flaw.hint for flaw in flaws), list(map(str, flaws))
    assert {flaw.check for flaw in flaws} == {name}
    assert all("\n" not in str(flaw) for flaw in flaws)


@each_row(("member", "backend"), [("expand", broken(settings=asks_once)), ("check", broken(check=checks_once))])
def test_what_is_done_once_and_cached_is_seen_whatever_asked_before(tmp_path, monkeypatch, member, backend):
    place = write_files(tmp_path)
    monkeypatch.chdir(place)
    _gpus.cache_clear()
    _token.cache_clear()
    flaws = check(backend, place, "members", "rendering", "names", "purity")
    assert [flaw.where.split(" of ")[0] for flaw in flaws] == [member]
    assert "it does something to the world" in flaws[0].what


def test_nothing_is_found_in_a_good_backend(place):
    assert list(map(str, check(Good(), place, *MORE))) == []


def test_bash_is_asked_about_each_script(place):
    (place / "templates/good/run.sh.j2").write_text(HEAD + "if\n")
    assert any(flaw.what.startswith("bash: ") for flaw in check(Good(), place, "scripts"))


def test_a_missing_bash_is_told_and_nothing_raises(place, monkeypatch):
    monkeypatch.setenv("PATH", str(place))
    flaw = check(Good(), place, "scripts")[-1]
    assert "there is no bash" in flaw.what and "install bash" in flaw.hint


def test_a_figure_of_files_counts_where_the_files_are_given(place):
    class Sums(PatternReader):
        def finish(self, outputs):
            return [Summary(values={"Total": path.read_text()}) for path in outputs.glob("total.txt")]

    summed = type("Broken", (Good,), {"mad_metrics": (MadMetric(metric="a", rule="summary", key="Total"),)})
    summed.reader = lambda self, plan: Sums(Good.step, "bye")
    (place / "left").mkdir()
    (place / "left/total.txt").write_text("3")
    assert len(check(summed(), place, "results")) == 1
    assert check(summed(), place, "results", outputs=[place / "left"]) == []


def test_values_that_are_asked_for_are_planned(place):
    asks = [{"lr": str(n / 100)} for n in range(1, 40)]
    every = ExtendedSubject(Good(), [CARD], asks=asks, **given(place, most=None))
    assert len(every.made) == 2 * 41
    assert {made.plan.settings["lr"] for made in every.made} == {0.001, *(n / 100 for n in range(1, 40))}


class Any(Good):
    """Puts any word into its script, and some of them mean the same there."""

    def variants(self, card, machine):
        yield Variant(model="good", micro_batch=2, steps=20)


@each_row(
    ("backend", "words", "what"),
    [
        (Good(), "", ""),
        (Any(), "", ""),  # what its script is not told is refused
        (Any(), "{{ '--fp8' if 'FP8' in variant.precision else '--bf16' }}", "precision MXFP8 runs what precision FP8"),
    ],
)
def test_two_precisions_are_two_runs(tmp_path, backend, words, what):
    place = write_files(tmp_path)
    script = place / "templates/good/run.sh.j2"
    script.write_text(script.read_text().replace("-m good", f"-m good {words}"))
    flaws = [str(flaw) for flaw in check(backend, place, "effects")]
    assert bool(flaws) == bool(what) and any(what in flaw for flaw in flaws or [""])

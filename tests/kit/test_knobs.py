"""What madlite's own backends alone have, beyond what the kit asks of every backend: knobs of `madlite tune`."""

from __future__ import annotations

from contextlib import suppress

import pytest
from msgspec.structs import replace

from madlite import Knob, UsageProblem
from madlite.backends.recipe_book import read_book
from madlite.text import scalar_text
from tests.kit.built_in import IN_FULL, NAMES, subject
from tests.rows import each_row
from tests.tiers import first_of


def flaws_of(spec):
    """Yield knobs whose values have another type than the setting's."""
    for knob in spec.knobs:
        own = spec.settings.get(knob.key)
        if knob.key == "micro_batch" or own is None:  # a setting that other runs of the backend have
            continue
        values = (*knob.values, *((0,) if knob.parts else ()))
        yield from (f"knob {knob.key} has {value!r}" for value in values if type(value) is not type(own))


@pytest.mark.host
@each_row("name", NAMES)
def test_values_of_knobs_have_the_type_of_their_setting(name):
    specs = [made.spec for made in subject(name, whole=False).made]
    assert [flaw for spec in specs for flaw in flaws_of(spec)] == []


@pytest.mark.host
@each_row("name", NAMES)
def test_each_knob_says_which_parts_of_a_step_it_acts_on(name):
    knobs = [knob for made in subject(name, whole=False).made for knob in made.spec.knobs]
    assert [knob.key for knob in knobs if not knob.acts_on] == []


@pytest.mark.host
def test_a_value_of_another_type_is_seen():
    spec = next(made.spec for made in subject("torchtitan", whole=False).made if made.spec.knobs)
    key = next(knob.key for knob in spec.knobs if knob.key in spec.settings)
    changed = replace(spec, knobs=(Knob(key=key, values=("slow",)),), settings={key: 1})
    assert list(flaws_of(changed)) == [f"knob {key} has 'slow'"]


def offered(name):
    """Yield the values of each knob that is offered for a run that could start, with that run's case."""
    made = subject(name, whole=False)
    for case in made.list_cases():
        with suppress(UsageProblem):
            for spec in made.expand(case):
                plan = made.plan(case, spec)
                layers = plan.architecture.layers if plan.architecture else 0
                knobs = [knob for knob in spec.knobs if knob.key != "micro_batch" and not knob.why_not(plan)]
                if knobs and not made.is_refused(plan):
                    tables = {knob.key: knob.values or [round(part * layers) for part in knob.parts] for knob in knobs}
                    yield case, {key: [scalar_text(value) for value in values] for key, values in tables.items()}


def refusals(name, case, *asked):
    """Return why no run of a case starts with these values."""
    made, case = subject(name, whole=False), replace(case, asked=(*case.asked, *asked))
    try:
        plans = [made.plan(case, spec) for spec in made.expand(case)]
    except UsageProblem as problem:
        return [problem.message]
    return [finding.message for plan in plans for finding in made.backend.check(plan) if finding.fatal]


@pytest.mark.host
@each_row("name", first_of(sorted(NAMES, key=IN_FULL.__ne__), 1))
def test_each_value_of_a_knob_is_offered_for_some_run_and_passes_the_backend_s_own_checks(name):
    book = getattr(subject(name, whole=False).backend, "book", None)
    knobs = [knob for knob in read_book(book).knobs if knob.key != "micro_batch"] if book else []
    left = {(knob.key, at): ["it is offered nowhere"] for knob in knobs for at in range(len(knob.values or knob.parts))}
    for case, tables in offered(name):
        for key, at in [place for place in left if place[0] in tables]:
            value = (key, tables[key][at])
            others = ((other, text) for other, texts in tables.items() if other != key for text in texts)
            # hf's compile_mode needs compile, which is another knob
            if any(not refusals(name, case, value, *other) for other in ((), *zip(others))):
                del left[key, at]
            else:
                left[key, at] = refusals(name, case, value)
        if not left:
            break
    assert left == {}

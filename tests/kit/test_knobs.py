"""What madlite's own backends alone have, beyond what the kit asks of every backend: knobs of `madlite tune`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from madlite import Knob
from tests.kit.built_in import NAMES, subject
from tests.rows import each_row


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

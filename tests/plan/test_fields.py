"""The table of a plan's keys: what is said of one in it holds for options, contexts, plans and `explain`."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner
from msgspec.structs import replace

from madlite.cli.main import main
from madlite.model import ResultRule, RunPlan
from madlite.plan.context import read_context
from madlite.plan.fields import (
    ALIASES,
    BY_KEY,
    CONTEXT_KEYS,
    FIELDS,
    OPTIONS,
    VARIANT_KEYS,
    Layer,
    Part,
    Size,
    resolve,
    targeted_rows,
)
from madlite.plan.inputs import layers
from madlite.plan.make import make_plan
from tests.rows import each_row

OTHER = {
    float: ("7", 7.0),
    bool: ("off", False),
    str: ("word", "word"),
    int: ("3", 3),
    Size: ("64K", 65536),
    Part: ("0.5%", 0.005),
}
TARGETED = [field for field in FIELDS if field.target]


def test_each_key_and_each_spelling_stands_once() -> None:
    spellings = [*BY_KEY, *ALIASES]
    assert len(spellings) == len(set(spellings)) == len(FIELDS) + sum(len(field.aliases) for field in FIELDS)
    assert set(VARIANT_KEYS) <= set(BY_KEY)
    # a spelling stands for its key
    resolved = resolve(None, {}, [Layer(origin="--set", values={"timeout": "5"})], "card")
    assert resolved.plan == {"timeout_s": 5.0}


@each_row("dest", OPTIONS)
def test_each_option_stands_in_the_help_of_a_run(dest: str) -> None:
    field, option = OPTIONS[dest]
    text = CliRunner().invoke(main, ["run", "--help-all"]).output
    assert f"  {option.name}" in text
    assert (f"--no-{option.name[2:]}" in text) is (field.type is bool)


@each_row("key", CONTEXT_KEYS)
def test_each_key_of_a_context_counts_at_its_top_and_stands_in_the_docs(key: str) -> None:
    context = read_context(None, f'{{"{key}": "1"}}')
    assert context.plan_values == [("--additional-context", key, "1")]
    assert f"`{key}`" in (Path(__file__).parents[2] / "docs" / "context.md").read_text()


@each_row("field", TARGETED, ids=lambda field: field.key)
def test_what_is_set_is_in_the_plan_with_its_origin_and_explained(field, given) -> None:
    text, value = ("on", True) if field.key == "profile" else OTHER[field.type]
    context = read_context(None, f'{{"{field.key}": "{text}"}}')
    inputs = given(context=context)
    by_steps = replace(inputs.spec, result_rule=ResultRule(kind="steps"))
    plan: RunPlan = make_plan(replace(inputs, spec=by_steps))
    assert getattr(plan, field.target) == value
    assert plan.origins[field.key] == "--additional-context"
    rows = {key: (shown, origin) for key, shown, origin in targeted_rows(plan)}
    assert rows[field.key] == (
        {"off": "off", "on": "on", "7": "7", "64K": "64K", "0.5%": "0.5%"}[text],
        "--additional-context",
    )
    assert layers(given().request, context, given().options)[2].values == {field.key: text}

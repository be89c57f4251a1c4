"""What is written is what runs: a value that a backend has no use for is refused, with what it does use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from madlite.backends.base import asked_words
from madlite.errors import UsageProblem, one_hint
from madlite.model import Request, Scalar, Value
from madlite.plan.context import Context, Options
from madlite.plan.inputs import RunInputs, layers
from madlite.plan.render import COUNTS, ROW_KEYS, STRANGE, Rendering, only_relabels, row_value, runs_alike
from madlite.plan.values import asked_origins, asked_values, canonical_key

_MOST = 8  # settings that a hint names


class Asking(Value, frozen=True):
    """One command for one card: the card with its tag, the context and the options."""

    request: Request
    context: Context
    options: Options


Plans = Callable[[Asking], Sequence[Rendering]]
"""Makes the plans of a command, without touching anything; raises UsageProblem where it is refused."""


def refuse_without_effect(
    given: RunInputs, make: Callable[[], Rendering], plans: Plans, is_fatal: Callable[[Rendering], bool]
) -> None:
    """Refuse what was asked for and changes nothing of a run but what is said of it.

    `make` makes the run's own plan; `is_fatal` says that a check refuses a plan, in better words than these.

    Raises:
        UsageProblem: a value only relabels.
    """
    asking = Asking(request=given.request, context=given.context, options=given.options)
    sources = layers(given.request, given.context, given.options, rendered=bool(given.draft.templates))
    said = replace(given.request, settings=asked_values(sources), origins=asked_origins(sources))
    asked = [
        key for key in ROW_KEYS if key in said.origins and key not in (*given.draft.settings, *given.draft.declared)
    ]
    if not asked:
        return
    own = make()

    def others(key: str, value: str | None) -> Sequence[Rendering] | None:
        try:
            found = plans(asked_otherwise(asking, key, value))
        except UsageProblem:
            return None
        return None if value is not None and any(map(is_fatal, found)) else found

    for key in asked:
        if row_value(own.plan, key) in (None, "") or not only_relabels(key, own, partial(others, key)):
            continue
        if not (given.options.lint and is_fatal(own)):
            raise _refusal(asked_words(said, key), key, own, others)


def asked_otherwise(asking: Asking, key: str, value: str | None) -> Asking:
    """Return a command in which a key is not asked for by anybody, or by `--set` alone with another value."""
    card, options, context = asking.request.card, asking.options, asking.context
    if isinstance(card.recipe, dict):
        card = replace(card, recipe=_without(card.recipe, key))
    overrides = tuple(pair for pair in asking.request.overrides if canonical_key(pair[0]) != key)
    sets = tuple(pair for pair in options.sets if canonical_key(pair[0]) != key)
    return Asking(
        request=replace(asking.request, card=card, overrides=overrides),
        context=replace(
            context,
            file_settings=_without(context.file_settings, key),
            option_settings=_without(context.option_settings, key),
        ),
        options=replace(
            options,
            named=tuple(one for one in options.named if canonical_key(one[1]) != key),
            sets=(*sets, *(((key, value),) if value is not None else ())),
        ),
    )


def _without(values: Mapping[str, Scalar], key: str) -> dict[str, Scalar]:
    return {name: value for name, value in values.items() if canonical_key(name) != key}


_Others = Callable[[str, "str | None"], "Sequence[Rendering] | None"]


def _refusal(words: str, key: str, own: Rendering, others: _Others) -> UsageProblem:
    plan = own.plan
    what = f"{words} is nothing to backend '{plan.backend}': the run would be the same, and its row would say otherwise"
    used = [name for name in _used(own, others) if name != key]
    known = [f"it uses {', '.join(used)}"] if used else []
    if settings := [name for name in plan.settings if name != "recipe"]:
        more = ", …" if len(settings) > _MOST else ""
        known.append(f"settings {', '.join(settings[:_MOST])}{more}")
    return UsageProblem(what, one_hint("leave it out", *known))


def _used(own: Rendering, others: _Others) -> Iterator[str]:
    """Yield what another value of changes the run, or is refused for."""
    for key in ROW_KEYS:
        value = row_value(own.plan, key)
        other = str(int(value or 1) * 2) if key in COUNTS and not isinstance(value, str) else STRANGE
        found = others(key, other)
        if found is None or not any(runs_alike(one, own) for one in found):
            yield key

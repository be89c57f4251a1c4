"""A log that no backend knows: which frameworks it speaks of, the line nearest to a step, and how that is read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from madlite.backends.log_formats import FormatBackend
from madlite.backends.step_lines import NUMBER, Missed
from madlite.errors import UsageProblem
from madlite.model import Backend
from madlite.text import printable

_SEVERAL = 3  # frameworks that are named
_WORDS = {  # of the other backends, by which a log speaks of the framework
    "torchtitan": ("torchtitan",),
    "torchtune": ("torchtune",),
    "primus": ("primus",),
    "megatron_lm": ("megatron",),
    "hf": ("transformers", "accelerate"),
}
_STEP = re.compile(r"(?i)(?<![a-z])(?:global[_ ]?)?(?:step|iter(?:ation)?|it|batch|update)s?[\s:=#\[]{0,4}(?P<n>\d+)")
_TOKENS = r"(?:tokens?|tok|toks)(?:/|_per_| per )s(?:ec(?:ond)?)?"
_GPU = r"(?:/|_per_| per )(?:gpu|device|rank)"
_VALUE = rf"[\s:=]{{1,3}}(?P<x>{NUMBER})"
_PARTS = (  # names of numbers, with what stands before or behind them
    ("loss", rf"(?i)(?<!val[_ ])loss{_VALUE}"),
    ("tokens_per_s_per_gpu", rf"(?i){_TOKENS}{_GPU}{_VALUE}"),
    ("tokens_per_s_per_gpu", rf"(?i)(?P<x>{NUMBER}) ?{_TOKENS}{_GPU}"),
    ("tokens_per_s", rf"(?i)(?:{_TOKENS}|tps){_VALUE}"),
    ("tokens_per_s", rf"(?i)(?P<x>{NUMBER}) ?[kM]? ?{_TOKENS}(?!{_GPU})"),
    ("step_time_ms", rf"(?P<x>{NUMBER}) ?ms\b"),
    ("step_time_s", rf"(?P<x>{NUMBER}) ?s/it\b"),
    ("steps_per_s", rf"(?P<x>{NUMBER}) ?it/s\b"),
)


def unknown_log(name: str, lines: Sequence[str], backends: Mapping[str, Backend], where: str) -> UsageProblem:
    """Return that nothing knows a log of these first lines, with what it looks like and what to try."""
    missed = Missed()
    for line in lines:
        missed.see(line)
    what = f"nothing that a backend knows{where}, and no line 'performance: <number> <metric>'"
    mentioned = list(_mentioned("\n".join(lines).casefold(), backends))[:_SEVERAL]
    speaks = f"; it mentions {' and '.join(mentioned)}" if mentioned else ""
    near = f"; the line nearest to a step: {printable(missed.nearest)}" if missed.nearest else ""
    step = suggest_step(missed.nearest) or r"step (?P<n>\d+) loss (?P<loss>\S+) (?P<step_time_ms>\S+) ms"
    command = f"madlite parse {shlex.quote(name)}"
    first = f"{command} --backend {mentioned[0]}, or " if mentioned else ""
    hint = f"{first}{command} --step {shlex.quote(step)}; [NAME] step = '…' in readers.toml keeps it (docs/readers.md)"
    return UsageProblem(f"{name} has {what}{speaks}{near}", hint)


def _mentioned(text: str, backends: Mapping[str, Backend]) -> Iterator[str]:
    """Yield the backends whose framework a text names."""
    for name, backend in backends.items():
        words = backend.format.words if isinstance(backend, FormatBackend) else _WORDS.get(name, ())
        if any(re.search(rf"(?<![a-z]){re.escape(word)}(?![a-z])", text) for word in words):
            yield name


def suggest_step(line: str) -> str:
    """Return a pattern that reads the step, the loss and a speed of a line; "" where it has no step."""
    step = _STEP.search(line)
    if step is None:
        return ""
    places = [(step.start(), step.span("n"), step.end(), "n")]
    for name, text in _PARTS:
        found = re.compile(text).search(line, step.end())
        free = found is not None and all(found.end() <= begin or end <= found.start() for begin, _, end, _ in places)
        if found is not None and free and name not in {taken for *_, taken in places}:
            places.append((found.start(), found.span("x"), found.end(), name))
    pieces = [
        f"{_literal(line[begin:first])}(?P<{name}>{_shape(name)}){_literal(line[last:end])}"
        for begin, (first, last), end, name in sorted(places)
    ]
    return ".*?".join(pieces)


def _shape(name: str) -> str:
    return {"n": r"\d+", "loss": r"[^\s,|\]]+"}.get(name, r"[\d.,]*\d")


def _literal(text: str) -> str:
    return re.sub(r"(?:\\ | )+", " +", re.escape(text))

"""How what was called differs from what a document says, each difference in one line.

`+ x` is only here, `- x` only in the document, `x -> y` is another value: of an option (`--seed 1`), of a variable
(`MBS=2`), of a word that is no option. `not run:` and `also run:` are whole programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import zip_longest

from madlite.model import RunPlan
from tests.documents.stubs import Call
from tests.documents.table import Step

_FLAGS = ("--standalone",)  # options that a word may follow which is not theirs


def differences(steps: Sequence[Step], calls: Sequence[Call]) -> list[str]:
    """Return how the programs that were called differ from a document's, the last of which is the training."""
    rest = list(calls)
    found: list[str] = []
    for number, step in enumerate(steps):
        call = next((one for one in rest if _program(one.words) == _program(step.words)), None)
        if call is None:
            found.append(f"not run: {' '.join(step.words)}")
            continue
        rest.remove(call)
        found += _of_words(step.words, call.words)
        last = number == len(steps) - 1
        found += _of_pairs(step.variables, {k: v for k, v in call.env.items() if last or k in step.variables}, "=")
    return found + [f"also run: {' '.join(call.words)}" for call in rest]


def container_differences(words: Sequence[str], plan: RunPlan) -> list[str]:
    """Return how a plan's container differs from what `docker run` is given in a document; the image comes last."""
    said, asked = {f"image {words[-1]}"}, list(words[2:-1])
    while asked:
        option = asked.pop(0)
        said.add(f"{option} {asked.pop(0)}" if asked and not asked[0].startswith("-") else option)
    more = plan.engine_options
    ours = {f"image {plan.image.ref if plan.image else ''}", f"--network {more.network}", f"--ipc {more.ipc}"}
    ours |= {f"--device {one}" for one in plan.devices} | {f"--name {plan.name}", "-it"}
    for option, values in {"group": more.group_add, "cap": more.cap_add}.items():
        ours |= {f"--{option}-add {value}" for value in values}
    ours |= {f"--security-opt {value}" for value in more.security_opt} | {f"--ulimit {one}" for one in more.ulimits}
    ours |= {f"-v {one.source}:{one.target}" for one in plan.mounts}
    return [f"- {one}" for one in sorted(said - ours)] + [f"+ {one}" for one in sorted(ours - said)]


def unexpected(found: Sequence[str], expected: Sequence[str]) -> list[str]:
    """Return the differences that no pattern names, and the patterns that name none."""
    unnamed = [one for one in found if not any(fnmatchcase(one, pattern) for pattern in expected)]
    gone = [pattern for pattern in expected if not any(fnmatchcase(one, pattern) for one in found)]
    return [f"unnamed: {one}" for one in unnamed] + [f"named, and not there: {pattern}" for pattern in gone]


def _program(words: Sequence[str]) -> str:
    """Return what a command runs: the first script that it names, else its first words."""
    scripts = (word.rpartition("/")[2] for word in words if word.endswith((".sh", ".py")))
    return next(scripts, " ".join(words[:2]))


def _of_words(said: Sequence[str], called: Sequence[str]) -> Iterator[str]:
    (own, options), (ours, more) = _split(said), _split(called)
    for one, other in zip_longest(own, ours):
        if one != other:
            yield f"+ {other}" if one is None else f"- {one}" if other is None else f"{one} -> {other}"
    yield from _of_pairs(options, more, " ")


def _of_pairs(said: dict[str, str], called: dict[str, str], sign: str) -> Iterator[str]:
    for name in sorted({**said, **called}):
        one, other = said.get(name), called.get(name)
        if one is None:
            yield f"+ {name}{sign}{other}".rstrip(" ")
        elif other is None:
            yield f"- {name}{sign}{one}".rstrip(" ")
        elif one != other and not (one.startswith("$") and other == "$token"):
            yield f"{name}{sign}{one} -> {other}"


def _split(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return a command's words without its options, and its options; folders in short, and `-r` as an option too."""
    plain: list[str] = []
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            plain.append(word.removeprefix("./"))
        elif "=" in word:
            name, _, value = word.partition("=")
            options[name] = value
        else:
            takes = word not in _FLAGS and rest and not rest[0].startswith("-")
            value = rest.pop(0) if takes else ""
            options[word] = value
    return plain, options

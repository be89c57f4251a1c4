"""What a user says of a script's log → how a step's line is read.

A line is told by a regular expression, as `madlite parse --step` takes it (docs/readers.md), or is a JSON object whose
keys are `n`, the step, and quantities in lower case, or `step_time_ms`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from madlite import QUANTITIES, Quantity, Scalar, UsageProblem, did_you_mean, nearest_words, one_hint, step_format
from madlite_plugins.torchrun.readers import READERS

SPEEDS = {
    quantity.name: quantity
    for quantity in (
        Quantity.TOKENS_PER_S_PER_GPU,
        Quantity.SAMPLES_PER_S_PER_GPU,
        Quantity.IMAGES_PER_S_PER_GPU,
        Quantity.TFLOPS_PER_GPU,
        Quantity.STEP_TIME_S,
    )
}
"""What can be the result, the first that there is."""
NAMES: dict[str, tuple[Quantity, float]] = {
    **{quantity.name: (quantity, 1.0) for quantity in QUANTITIES.values()},
    "step_time_ms": (Quantity.STEP_TIME_S, 1e-3),
    **{
        f"{what}_per_s": (Quantity(name=f"{what}_per_s", unit=f"{what}/s", direction="higher", label=f"{what}/s"), 1.0)
        for what in ("tokens", "samples", "images")  # of the whole job
    },
}
"""Names of numbers, with the factor that makes their quantity's unit."""
SPELLINGS = {
    spelling: name
    for name, spellings in {
        "tokens_per_s": "tokens_per_second tokens_per_sec tokens/s tokens/sec tok_per_s tok_per_sec tok_s tok/s",
        "samples_per_s": "samples_per_second samples_per_sec samples/s samples/sec train_samples_per_second",
        "images_per_s": "images_per_second images_per_sec images/s images/sec imgs_per_sec img/s",
        "tokens_per_s_per_gpu": "tokens_per_second_per_gpu tokens_per_sec_per_gpu tokens/s/gpu tokens/sec/gpu",
        "samples_per_s_per_gpu": "samples_per_second_per_gpu samples_per_sec_per_gpu samples/s/gpu samples/sec/gpu",
        "step_time_s": "seconds_per_step sec_per_step s_per_step s/step s/it",
        "step_time_ms": "ms_per_step ms/step ms/it iter_time_ms iteration_time_ms",
    }.items()
    for spelling in spellings.split()
}
"""Other spellings of keys of JSON objects that say what they count, in which unit, and for whom."""
STEP_NAMES = ("n", "step", "iteration", "global_step")  # of the step in a JSON object without a key of its own
_TRUE = ("true", "yes", "on", "1")
_EXAMPLE = r"""--set 'step=step (?P<n>\d+) loss (?P<loss>\S+) tps (?P<tokens_per_s_per_gpu>[\d,.]+)'"""


def on(value: Scalar) -> bool:
    """Return whether a setting is on; as text where it is still what the user wrote."""
    return str(value).strip().lower() in _TRUE


def is_json(settings: Mapping[str, Scalar]) -> bool:
    """Return whether steps are JSON objects."""
    return on(settings["json"]) or bool(settings["json_prefix"] or settings["json_keys"])


def groups_of(text: str) -> tuple[set[str], set[Quantity]]:
    """Return the groups of the expression of a step's line, and the quantities of one GPU that they give.

    Raises:
        UsageProblem: it is none, or its groups are no names of numbers.
    """
    try:
        (pattern,) = step_format(text, "step").patterns
    except UsageProblem as problem:
        raise UsageProblem(problem.message, problem.hint or _EXAMPLE, keys=("step",)) from None
    groups = set(pattern.regex.groupindex)
    of_job = {
        QUANTITIES.get(f"{quantity.name}_per_gpu", quantity) for quantity in pattern.values(dict.fromkeys(groups, 1.0))
    }
    return groups, of_job | ({Quantity.STEP_TIME_S} if groups & {"elapsed", "elapsed_s", "elapsed_ms"} else set())


def read_keys(text: str) -> dict[str, str]:
    """Return which name each key of a JSON object stands for: `tps=tokens_per_s_per_gpu, it=n`.

    Raises:
        UsageProblem: it is no such list, or a name is unknown.
    """
    keys: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, between, name = (word.strip() for word in part.rpartition("="))
        if not (key and between and name):
            raise UsageProblem(
                f"json_keys has {part!r}, which is no key=name",
                "--set json_keys=it=n,loss_avg=loss",
                keys=("json_keys",),
            )
        _check_name(name, f"json_keys has {key!r} as")
        keys[key] = name
    return keys


def misspelt(given: Iterable[str], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield keys that are not known and nearly spell one that is, with that one."""
    for key in given:
        close = nearest_words(key, known, most=1) if key not in known else ()
        yield from ((key, nearest) for nearest in close)


def choose_headline(settings: Mapping[str, Scalar], *, sized: bool) -> tuple[Quantity, bool]:
    """Return which quantity is the result, and whether every step reports a loss.

    `sized` where sequence length and batch are stated, so that tokens follow from a step's time.

    Raises:
        UsageProblem: nothing states how a step is read, two things do, or no such speed is in it.
    """
    text, reader = str(settings["step"]), str(settings["reader"])
    if (ways := [way for way in (text and "step", is_json(settings) and "json", reader and "reader") if way])[1:]:
        raise UsageProblem(
            f"{ways[0]} and {ways[1]} are two ways to read a line", "leave one of them out", keys=tuple(ways)
        )
    if reader:
        return _headline_of_log(reader, settings)
    if not ways:
        raise UsageProblem(
            "no pattern is set for the steps of the log",
            f"{_EXAMPLE}   or --set json=true",
            keys=("script", "step", "json", "reader"),
        )
    if text:
        names, given = groups_of(text)
    else:
        names = set(read_keys(str(settings["json_keys"])).values())
        given = {NAMES[name][0] for name in names if name != "n"}
    there = [name for name in SPEEDS if SPEEDS[name] in given]
    if sized and "step_time_s" in there and "tokens_per_s_per_gpu" not in there:
        there.insert(0, "tokens_per_s_per_gpu")
    requested = str(settings["headline"]).strip()
    if requested and requested not in SPEEDS:
        raise UsageProblem(f"headline {requested!r} is no speed", f"one of {', '.join(SPEEDS)}", keys=("headline",))
    if text and (not there or (requested and requested not in there)):
        raise _no_speed(requested, text, there)
    chosen = requested or (there[0] if there else "tokens_per_s_per_gpu")
    return SPEEDS[chosen], bool(text) and "loss" in names


def _check_name(name: str, where: str) -> None:
    if name != "n" and name not in NAMES:
        hints = (did_you_mean(name, NAMES, most=1), f"names: n, {_listed(NAMES)}")
        raise UsageProblem(f"{where} {name!r}, which names no number", one_hint(*hints), keys=("json_keys",))


def _headline_of_log(reader: str, settings: Mapping[str, Scalar]) -> tuple[Quantity, bool]:
    """Return the result of a known framework's log, whose steps have a loss."""
    if reader not in READERS:
        hints = (did_you_mean(reader, READERS, most=1), f"readers: {_listed(READERS)}")
        raise UsageProblem(f"reader '{reader}' is no log that is known", one_hint(*hints), keys=("reader",))
    if not on(settings["per_gpu"]):
        raise UsageProblem(
            f"reader '{reader}' gives speeds per GPU, and per_gpu=false divides them",
            "leave it out",
            keys=("reader", "per_gpu"),
        )
    there = READERS[reader].speeds
    requested = str(settings["headline"]).strip() or there[0]
    if requested not in there:
        raise UsageProblem(
            f"reader '{reader}' reads no {requested}",
            f"headline is one of {_listed(there)}",
            keys=("reader", "headline"),
        )
    return SPEEDS[requested], True


def _no_speed(requested: str, text: str, there: Iterable[str]) -> UsageProblem:
    if requested == "tokens_per_s_per_gpu" and "step_time_s" in there:
        hint = "--seq-len and --batch-size set the tokens of a step"
        return UsageProblem(
            f"step {text!r} reads a step's time, and not its tokens", hint, keys=("step", "seq_len", "micro_batch")
        )
    return UsageProblem(
        f"step {text!r} reads no {requested or 'speed'}",
        f"give it a group of {_listed(SPEEDS)}",
        keys=("step", "headline"),
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)

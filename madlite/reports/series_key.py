"""What tells series apart, and what is named where two results differ: the one place for both.

The key of a series is what asks for other work (`DIMENSIONS`); facts are what people compare on purpose, as images,
scripts and machines, and are never key.  A dimension that a source does not record is "", which means unknown and not
"equal"; one that is recorded and empty is `NONE`.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from madlite.model import Value
from madlite.plan.caches import CACHE_VARIABLES
from madlite.secrets import MASK, Redactor
from madlite.store.record import Record
from madlite.text import scalar_text, shortened_middle

# The key.

DIMENSIONS = (
    *("model", "backend", "recipe", "mode", "precision", "seq_len", "micro_batch", "global_batch"),
    *("runtime", "args", "settings", "env", "device", "gpus", "nodes", "varied", "metric"),
)
NONE = "(none)"
_COLUMNS = {
    **{name: (name,) for name in DIMENSIONS},
    "precision": ("precision", "training_precision"),
    "seq_len": ("seq_len", "sequence_length"),
    "micro_batch": ("micro_batch", "batch_size", "micro_batch_size"),
    "global_batch": ("global_batch", "global_batch_size"),
    "device": ("device", "gpu_architecture"),
    "gpus": ("n_gpus", "num_gpus"),
    "nodes": ("nnodes",),
}
"""The columns of a results file in which a dimension stands, the first that has a text."""
RESULT_COLUMNS = tuple(dict.fromkeys(name for names in _COLUMNS.values() for name in names))
_OTHER_SIZES = ("model", "steps", "warmup_steps")  # of a variant, that have no dimension of their own
_SHORT = {"seq_len": "seq", "micro_batch": "mbs", "global_batch": "gbs"}
_LONGEST = 40  # characters of args and variables in a name


def key_of_row(cells: Mapping[str, str]) -> tuple[str, ...]:
    """Return the dimensions that a row of a results file has: all of them, unknown ones blank."""
    found = {name: _normal(first_text(cells, names)) for name, names in _COLUMNS.items()}
    return as_key({**found, "args": _masked(found["args"]) or (NONE if "args" in cells else "")})


_masked = lru_cache(1024)(Redactor().text)  # as records and baselines have it


def row_names(cells: Mapping[str, str]) -> dict[str, str]:
    """Return model and metric as a row has them, which its run's record does not know."""
    own = {name: _normal(first_text(cells, _COLUMNS[name])) for name in ("model", "metric")}
    return {name: text for name, text in own.items() if text}


def record_dimensions(record: Record, row: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the dimensions of a run that its record has; `row` is one of its rows, where the record has none yet."""
    variant, place = record.variant, record.place
    row = row or (record.rows.cells[0] if record.rows is not None and record.rows.cells else {})
    known = {
        "model": record.card,
        "backend": record.backend,
        "recipe": record.recipe,
        "mode": variant.mode if variant else "",
        "precision": (variant.precision if variant else "") or record.precision or row.get("training_precision", ""),
        "seq_len": variant.seq_len if variant else None,
        "micro_batch": variant.micro_batch if variant else None,
        "global_batch": variant.global_batch if variant else None,
        "runtime": record.runtime,
        # a rendered run has none of a card's own script, whose row has them all the same
        "args": record.args or (row.get("args", "") if record.rendered else "") or _none(record),
        "settings": _joined(_settings(record)) or _none(record),
        "env": "" if record.env is None else _joined(record.env) or NONE,
        "device": record.device,
        "gpus": place.nodes * place.gpus_per_node if place else None,
        "nodes": place.nodes if place else None,
        "metric": "",
    }
    texts = {name: "" if value is None else str(value) for name, value in known.items()}
    return {**texts, "varied": _varied(record, texts)}


def _none(record: Record) -> str:
    return NONE if record.card else ""


def _settings(record: Record) -> dict[str, str]:
    """Return the backend's settings, and the sizes that have no dimension of their own."""
    sizes = {name: getattr(record.variant, name) for name in _OTHER_SIZES} if record.variant is not None else {}
    own = {name: value for name, value in record.settings.items() if name != "recipe"}
    return {name: scalar_text(value) for name, value in {**sizes, **own}.items() if value is not None}


def _joined(values: Mapping[str, str]) -> str:
    return shlex.join(f"{name}={text}" for name, text in sorted(values.items()))


@lru_cache(1024)
def _parts(text: str) -> dict[str, str]:
    """Return the values of a dimension that has several: settings, variables."""
    try:
        words = shlex.split("" if text == NONE else text)
    except ValueError:  # somebody else's text
        words = [text]
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _varied(record: Record, others: Mapping[str, str]) -> str:
    """Return the values of a study's point that no other dimension has, in the order of their names."""
    point = record.study.point if record.study is not None else {}
    values = {key: scalar_text(value) for key, value in sorted(point.items())}
    return ", ".join(f"{key}={text}" for key, text in values.items() if others.get(key) != text)


def agree(name: str, text: str, other: str) -> bool:
    """Return whether two values of a dimension may be of one series: they are equal, or one of them is unknown.

    A setting that one of two versions of a recipe does not have yet is unknown there, too.
    """
    if text == other or not text or not other:
        return True
    if name != "settings" or NONE in (text, other):
        return False
    first, second = _parts(text), _parts(other)
    return all(first[key] == second[key] for key in first.keys() & second.keys())


def first_text(cells: Mapping[str, str], names: Sequence[str]) -> str:
    """Return the first of these cells that has a text."""
    return next((text for name in names if (text := cells.get(name, "").strip())), "")


def _normal(text: str) -> str:
    """Return a whole number without the `.0` that pandas adds to a column with blanks; other text as it is."""
    whole, _, rest = text.partition(".")
    return whole if rest and whole.isdigit() and not rest.strip("0") else text


# Its name.


def series_name(dimensions: Mapping[str, str]) -> str:
    """Return known dimensions in one line, in words that a table's reader knows."""
    device, gpus = dimensions.get("device", ""), dimensions.get("gpus", "")
    place = f"{gpus}x{device}" if device and gpus not in ("", "0") else device
    nodes = dimensions.get("nodes", "")
    parts = (
        *(dimensions.get(name, "") for name in ("model", "backend", "recipe", "mode", "precision")),
        *(f"{short} {dimensions[name]}" for name, short in _SHORT.items() if dimensions.get(name)),
        *(
            f"{name} {shortened_middle(text, _LONGEST)}"
            for name in ("args", "env")
            if (text := _text(dimensions, name))
        ),
        place or (f"{gpus} GPUs" if gpus else ""),
        f"{nodes} nodes" if nodes not in ("", "1") else "",
        dimensions.get("varied", ""),
        dimensions.get("metric", ""),
    )
    return " ".join(part for part in parts if part)


def _text(dimensions: Mapping[str, str], name: str) -> str:
    text = dimensions.get(name, "")
    return "" if text == NONE else text


def series_names(every: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names of series of one list: where two are called the same, with what tells them apart."""
    names = [series_name(dimensions) for dimensions in every]
    same = {name for name, count in Counter(names).items() if count > 1}
    alike = {name: [dimensions for dimensions, own in zip(every, names, strict=True) if own == name] for name in same}
    return [
        f"{name} ({more})" if name in same and (more := ", ".join(_apart(dimensions, alike[name]))) else name
        for dimensions, name in zip(every, names, strict=True)
    ]


def _apart(dimensions: Mapping[str, str], others: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield what of a series is not the same in others that have its name."""
    for name in DIMENSIONS:
        texts = {other.get(name, "") for other in others}
        own = dimensions.get(name, "")
        if len(texts) == 1:
            continue
        if name != "settings" or not own or own == NONE:
            yield own if own and name == "runtime" else f"{name} {own or 'unknown'}"
            continue
        parts = [_parts(text) for text in texts]
        differ = (key for key in _parts(own) if len({part.get(key) for part in parts}) > 1)
        yield ", ".join(f"{key}={_parts(own)[key]}" for key in differ)


# Facts: what is never key, and named where it differs.

FACTS = {
    "docker_image": "image",
    "docker_sha": "docker_sha",
    "git_commit": "git commit",
    "machine_name": "machine",
    "additional_docker_run_options": "additional_docker_run_options",
}
"""The columns of a results file that say what a run ran with, and the facts that they are."""
_GROUPS = {
    **{name: name for name in ("gpu", "inside")},
    **{"setting": "settings", "config": "config", "env": "variables", "file": "files of the script"},
    **{"repository": "repositories", "host": "host", "package": "packages", "plugin": "plugins", "data": "data"},
    "plan": "plan",
}
"""What the names of further facts begin with, what most often explains a change first, and what they are together."""
FACT_NAMES = (
    *("image", "image digest", "script", "release", "machine", "git commit", "madlite", "caches"),
    *_GROUPS.values(),
)
FACT_GROUPS = tuple(f"{name} " for name in _GROUPS)
_FIRST = ("image", "image digest", "docker_sha", "release", "script", "caches")  # what an engineer looks at first
_NAMED = ("image digest", "script", "files of the script", "repositories", "packages", "gpu driver", "machine")
"""What a comparison names where it was not recorded, so that nobody takes it for equal."""


def row_facts(cells: Mapping[str, str]) -> dict[str, str]:
    """Return what a row says of what its run ran with."""
    return {fact: text for name, fact in FACTS.items() if (text := cells.get(name, "").strip())}


def record_facts(record: Record) -> dict[str, str]:
    """Return what a run ran with that can change its number and is no other work, by name.

    What is known not to be there is `NONE`: an image on the host, or under the name of a group all of its facts.
    """
    provenance, image = record.provenance, record.image
    # the study's own are at another place each time, and "caches" says what they are
    own = CACHE_VARIABLES if record.study is not None and record.study.caches else ()
    facts = {
        "image": image.ref,
        "image digest": image.digest or image.base_digest,
        "script": provenance.script_sha256[:12],
        "release": record.variant.release or NONE if record.variant else "",
        "machine": record.hostname,
        "git commit": record.git_commit,
        "madlite": record.madlite,
        "caches": record.caches,
        "gpu driver": NONE if record.place and not record.place.gpus_per_node else "",
        **{f"gpu {name}": text for name, text in provenance.gpu.items()},
        **{f"host {name}": text for name, text in provenance.host.items()},
        **{f"inside {name}": text for name, text in provenance.inside.items()},
        **{f"repository {name}": text for name, text in provenance.repositories.items()},
        **{f"package {name}": text for name, text in provenance.packages.items()},
        **{f"file {name}": text[:12] for name, text in provenance.files.items()},
        **{f"plugin {name}": text for name, text in provenance.versions.items() if name != "madlite"},
        **{f"data {data_use.name}": f"{data_use.provider} {record.data_size}".strip() for data_use in record.data},
        **{f"env {name}": text for name, text in {**provenance.environment, **(record.env or {})}.items()},
        **{f"setting {name}": text for name, text in _settings(record).items()},
        **{f"config {name}": text for name, text in record.config.items()},
        **{f"plan {name}": text for name, text in record.inputs.items()},
    }
    known = {name: text for name, text in facts.items() if text and not (own and name.removeprefix("env ") in own)}
    return {**dict.fromkeys(_known_empty(record), NONE), **known}


def _known_empty(record: Record) -> Iterator[str]:
    """Yield what a record knows of that may not be there: facts, and groups of them."""
    if record.traits is not None and not record.traits.containerised:
        yield from ("image", "image digest")
    if record.env is not None:  # as long as that is recorded, so are these
        yield from ("variables", "data", "plan")
        if record.provenance.script:
            yield "files of the script"
    if record.provenance.inside:  # the environment of the run was probed
        yield from ("packages", "repositories")
    if record.settings or record.variant is not None:
        yield "settings"


def fact_rank(name: str) -> tuple[int, str]:
    """Return the place of a fact among those that differ, what most often explains a change first."""
    if name in _FIRST:
        return _FIRST.index(name), ""
    group = next((n for n, start in enumerate(FACT_GROUPS) if name.startswith(start)), len(FACT_GROUPS))
    return len(_FIRST) + group, name


# Differences of several sides, each a series or a run.

Facts = Mapping[str, Sequence[str]]
"""Of one side the values of each fact: one of a run, several of a series."""


class Input(Value, frozen=True):
    """One thing that sides ran with: its values on each side, none where it is not there or not recorded."""

    name: str
    values: tuple[tuple[str, ...], ...]
    differs: bool = False


def compare_inputs(keys: Sequence[Sequence[str]], facts: Sequence[Facts]) -> Iterator[Input]:
    """Yield all that sides ran with, dimensions first, then facts, and whether it differs.

    What a side does not record is no difference but unknown (`unknown_inputs`); a fact of a group is there or not where
    the side records the group.
    """
    for name, texts in zip(DIMENSIONS, zip(*keys, strict=True), strict=True):
        known = {text for text in texts if text}
        # the facts have their parts, each by its name
        yield Input(name, tuple((text,) if text else () for text in texts), len(known) > 1 and name not in _IN_PARTS)
    groups = {*_GROUPS.values()}
    for name in sorted({name for fact in facts for name in fact} - groups, key=fact_rank):
        values = tuple(tuple(fact.get(name, ())) for fact in facts)
        known_values = [{*own} for own, fact in zip(values, facts, strict=True) if _is_known(fact, name)]
        yield Input(name, values, any(own != known_values[0] for own in known_values))


_IN_PARTS = ("settings", "env")
_NOT_ALWAYS = ("host doctor",)  # facts of a group that a record may have without having looked at them


def _is_known(facts: Facts, name: str) -> bool:
    """Return whether a side records a fact, be it there or not."""
    if name in facts or name in _NOT_ALWAYS:
        return name in facts
    start = next((start for start in FACT_GROUPS if name.startswith(start)), "")
    # of variables older records have those alone that are known to change a speed
    in_part = start != "env " and bool(start) and any(fact.startswith(start) for fact in facts)
    return in_part or _GROUPS.get(start.rstrip(), "") in facts


def unknown_inputs(keys: Sequence[Sequence[str]], facts: Sequence[Facts]) -> tuple[str, ...]:
    """Return what not every side records, so that a difference cannot be seen: dimensions, and facts that matter most.

    What no side has of most dimensions, as a recipe, none of them has.  Of a secret variable no value is recorded.
    """
    secret = {name[4:]: None for fact in facts for name, texts in fact.items() if name[:4] == "env " and _MASK in texts}
    blank = [
        name
        for name, texts in zip(DIMENSIONS, zip(*keys, strict=True), strict=True)
        if name not in ("varied", "metric") and not all(texts) and (name in _HAVE_ALL or any(texts))
    ]
    named = (name for name in _NAMED if not all(_records(fact, name) for fact in facts))
    return (*blank, *named, *(f"the value of {name}" for name in sorted(secret)))


_MASK = MASK.decode()
_HAVE_ALL = ("precision", "seq_len", "device", "runtime", "args", "settings", "env")


def _records(facts: Facts, name: str) -> bool:
    start = next((start for start, whole in _GROUPS.items() if whole == name), "")
    return name in facts or (bool(start) and any(fact.startswith(f"{start} ") for fact in facts))


def as_key(dimensions: Mapping[str, str]) -> tuple[str, ...]:
    """Return dimensions in their order, blank ones where there are none."""
    return tuple(dimensions.get(name, "") for name in DIMENSIONS)


def as_dimensions(key: Sequence[str]) -> dict[str, str]:
    """Return a key as dimensions by their names."""
    return dict(zip(DIMENSIONS, key, strict=True))


def unlike(key: Sequence[str], others: Iterable[Sequence[str]]) -> list[str]:
    """Return in what a series differs from the most similar of others of its model and metric; nothing without one."""
    own = as_dimensions(key)
    near: list[list[str]] = []
    for other in map(as_dimensions, others):
        if (other["model"], other["metric"]) == (own["model"], own["metric"]):
            near.append([name for name in DIMENSIONS if not agree(name, own[name], other[name])])
    return min(near, key=len, default=[])

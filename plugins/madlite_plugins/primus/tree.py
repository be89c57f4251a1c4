"""A Primus tree → cards, one per example config, named as MAD's scripts/primus_train/get_models_json.py names them.

Which files count: `examples/<launcher>/configs/<GPU>/**/<name>.yaml`.  Before v25.10 Primus kept its configs flat in
`configs/`; MAD made no cards of those, and neither does this.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from glob import glob
from pathlib import Path, PurePosixPath

from madlite import Problem
from madlite_plugins.primus.tree_config import Presets, read_values

TREE = "tree"
"""The recipe of cards made of config files."""
SCOPE = "primus_train"
OTHERS = frozenset({"maxtext", "maxdiffusion"})  # JAX: MAD finds them by other scripts, for other images
PRECISIONS = ("MXFP8", "MXFP4", "BF16", "FP16", "FP8", "FP4")  # MXFP8 is not to be taken for FP8
DEFAULT = "examples/megatron/exp_pretrain.yaml"  # what MAD's primus_train/default runs
_PARTS = 5  # examples / launcher / configs / GPU / file
_COMMON = {
    "dockerfile": "docker/primus",
    "dockercontext": ".",
    "scripts": f"scripts/{SCOPE}/run.sh",
    "owner": "mad.support@amd.com",
    "backend": "primus",
}


def is_primus_tree(path: Path) -> bool:
    """Return whether a folder is a checkout of Primus: example configs, and the code that runs them."""
    code = any((path / name).is_dir() for name in ("primus", "runner"))
    return code and any(folder.is_dir() for folder in path.glob("examples/*/configs"))


def cards_of_tree(tree: Path) -> Iterator[Mapping[str, object] | Problem]:
    """Yield a card per config of a Primus tree, in the order of their paths; instead of one that is broken a Problem.

    The card's `recipe` holds what its file says of the run: `config` (relative to the tree), framework, suite, model,
    mode, precision, micro_batch, global_batch, seq_len, steps, tp, pp, ep, cp; mock_data and tokenizer also where
    its presets say them.  What else the file leaves to Primus's presets is not in it.
    """
    presets = Presets(tree)
    if (tree / DEFAULT).is_file():
        yield _card_or_problem(tree, DEFAULT, _default_card(), presets)
    found = list(configs(tree))
    for config in found:
        yield _card_or_problem(tree, config, card_fields(config), presets)
    if not found:
        yield Problem(where=str(tree), what="it has no config in examples/*/configs/<GPU>/, as Primus has since v25.10")


def configs(tree: Path) -> Iterator[str]:
    """Yield the paths of the configs that become cards, relative to the tree, sorted."""
    pattern = "examples/*/configs/**/*.yaml"  # as MAD reads it: hidden names left out, links followed
    for path in sorted(glob(pattern, root_dir=tree, recursive=True)):  # noqa: PTH207
        parts = PurePosixPath(path).parts
        if len(parts) >= _PARTS and parts[1] not in OTHERS:
            yield path


def card_fields(config: str) -> dict[str, object]:
    """Return what the path of a config alone says of its card."""
    path = PurePosixPath(config)
    launcher, gpu = path.parts[1], path.parts[3]
    return {
        "name": f"{SCOPE}/{launcher}_{gpu}_{path.stem}",
        "tags": ["primus", launcher, gpu, path.stem],
        "args": f"--config_path {shlex.quote(config)}",
        "n_gpus": "8",
        "timeout": 86400,
        "training_precision": precision_of(path.stem).lower(),
        "multiple_results": "primus_perf_output.csv",
    }


def precision_of(text: str) -> str:
    """Return the precision that a name says, or nothing."""
    return next((word for word in PRECISIONS if word in text.upper()), "")


def _default_card() -> dict[str, object]:
    tags = ["training", "primus", "megatron", "pretrain"]
    return {"name": f"{SCOPE}/default", "tags": tags, "args": "", "n_gpus": "-1"}


def _card_or_problem(
    tree: Path, config: str, fields: Mapping[str, object], presets: Presets
) -> Mapping[str, object] | Problem:
    try:
        values = read_values(tree / config, presets)
    except ValueError as error:
        return Problem(where=str(tree / config), what=str(error))
    named, inside = precision_of(PurePosixPath(config).stem), precision_of(str(values.pop("precision", "")))
    if inside and named in ("", "BF16"):  # a file for BF16 that turns FP8 on trains in FP8
        named = inside
    precision = {"precision": named} if named else {}
    return {**fields, **_COMMON, "recipe": {"name": TREE, "config": config, **values, **precision}}

"""Whether a config file is what tag, row and machine call it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath

from madlite import Finding, RunPlan, Variant, read_book
from madlite_plugins.primus.precision import precision_of_run
from madlite_plugins.primus.release_checks import BOOK, Config, release_findings
from madlite_plugins.primus.tree import TREE, is_primus_tree

GPUS = ("MI300X", "MI325X", "MI355X")  # that Primus has config files for
WITHOUT_MX = ("gfx90a", "gfx942")  # Instinct MI200, MI300X and MI325X: no microscaling formats in hardware
_TAG = re.compile(r"primus_pyt_(?:megatron_lm_)?train_(.+)")
_SUFFIX = re.compile(r"(?:-proxy)?(?:_overlay)?$")
_MODES = re.compile(r"-(?:sft|lora|thinking)$")


def config_findings(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Yield what is wrong with a plan's config file, as far as its name tells."""
    path = str(plan.settings["config"])
    if not path:
        yield Finding(
            message="no config file is named", hint="--set config=examples/…yaml", fatal=True, keys=("config",)
        )
        return
    config = Config(path)
    yield from _precision(plan, variant, config.path)
    yield from release_findings(plan, variant, config)
    yield from _model(plan, config.path)
    yield from _gpu(plan, config)
    yield from _tree(plan, config.path)
    yield from _part(plan)


def _precision(plan: RunPlan, variant: Variant, config: PurePosixPath) -> Iterator[Finding]:
    trained, machine = precision_of_run(plan), plan.machine
    if variant.precision and trained != variant.precision:
        yield Finding(
            message=f"{config.name} trains in {trained}, and the row would have {variant.precision}",
            hint=f"--precision {trained}, or --set config= with a file for {variant.precision}",
            fatal=True,
            keys=("config", "precision"),
        )
    if trained.startswith("MX") and machine.architecture in WITHOUT_MX:
        yield Finding(
            message=f"{config.name} trains in {trained}, which {machine.device or 'a GPU'} ({machine.architecture}) "
            "does not have",
            hint="MI350X and MI355X have it; here --precision FP8 or BF16",
            fatal=True,
            keys=("config", "precision"),
        )


def _gpu(plan: RunPlan, config: Config) -> Iterator[Finding]:
    """Report a file for another GPU, where neither a recipe nor a `recipe_device` selects it."""
    device = plan.machine.device
    fitting = {device, read_book(BOOK).stand_in.get(device)}
    if not _of_recipe(plan, "recipe_device"):
        fitting.add(str(plan.settings["recipe_device"]))
    if config.gpu in GPUS and config.gpu not in fitting and not _of_recipe(plan, "config"):
        yield Finding(message=f"{config.path.name} is made for {config.gpu}, this machine has {device}")


def _of_recipe(plan: RunPlan, key: str) -> bool:
    return plan.origins.get(f"settings.{key}", "recipe").startswith("recipe")


def _model(plan: RunPlan, config: PurePosixPath) -> Iterator[Finding]:
    """Check that a tag of MAD and its config file name the same model."""
    found = _TAG.search(plan.card.name)
    if not found:
        return
    requested, trained = _MODES.sub("", _SUFFIX.sub("", found[1])), config.name
    wanted, actual = _letters(requested), _letters(trained)
    if not actual.startswith(wanted) and not wanted.startswith(_letters(re.split(r"[-.](?=[A-Za-z])", trained)[0])):
        yield Finding(message=f"the tag names {requested}, and {trained} is what is trained")


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _tree(plan: RunPlan, config: PurePosixPath) -> Iterator[Finding]:
    """Tell where the file of a tree's card is not that tree's: a container has the image's own Primus."""
    tree, settings = plan.card.root, plan.settings
    if settings["recipe"] != TREE or settings["primus_root"]:
        return
    if not plan.traits.containerised or not is_primus_tree(tree):
        return
    mounts = shlex.quote(json.dumps({"docker_mounts": {"/primus": str(tree)}}))
    yield Finding(
        message=f"the image's own {config.name} is trained, with the values that {tree} has for it",
        hint=f"-c {mounts} --set primus_root=/primus trains with that tree",
    )


def _part(plan: RunPlan) -> Iterator[Finding]:
    """Tell of what is measured that is less, or other, than the tag's name says."""
    layers = re.search(r"--num_layers[= ](\d+)", str(plan.settings["flags"]))
    if layers:
        yield Finding(message=f"a proxy of {layers[1]} layers: its numbers are not the full model's")
    built = plan.image is not None and plan.image.dockerfile is not None
    if plan.card.name.endswith("_overlay") and not built:
        yield Finding(
            message="the overlay of this card, a newer RCCL, is in the image that its Dockerfile makes alone",
            hint="run it inside a checkout of ROCm/MAD, or name such an image with --image",
        )

"""Whether a config file is there in its release, and is what tag and row call it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from madlite import Finding, RunPlan, Variant, read_book
from madlite_plugins.primus.precision import precision_of_run

BOOK = Path(__file__).with_name("recipes")
GPUS_SINCE = {"MI300X": "v25.10", "MI355X": "v25.10", "MI325X": "v26.3"}  # release of their folder of configs
_TAG = re.compile(r"primus_pyt_(?:megatron_lm_)?train_(.+)")
_SUFFIX = re.compile(r"(?:-proxy)?(?:_overlay)?$")
_MODES = re.compile(r"-(?:sft|lora|thinking)$")


def config_findings(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Yield what is wrong with a plan's config file, as far as its name tells."""
    config = PurePosixPath(str(plan.settings["config"]))
    if not config.name:
        yield Finding(message="no config file is named", hint="--set config=examples/…yaml", fatal=True)
        return
    yield from _precision(plan, variant, config)
    yield from _release(variant, config)
    yield from _model(plan, config)
    yield from _gpu(plan, config)
    yield from _part(plan)


def _precision(plan: RunPlan, variant: Variant, config: PurePosixPath) -> Iterator[Finding]:
    trained = precision_of_run(plan)
    if variant.precision and trained != variant.precision:
        yield Finding(
            message=f"{config.name} trains in {trained}, and the row would say {variant.precision}",
            hint=f"--precision {trained}, or --set config= with a file for {variant.precision}",
            fatal=True,
        )


def _release(variant: Variant, config: PurePosixPath) -> Iterator[Finding]:
    """Check the folder of a config that the recipes of its release do not name."""
    book = read_book(BOOK)
    order = list(book.releases)
    gpu = config.parent.name
    if gpu == "MI350X":
        yield Finding(
            message="Primus has no configs for MI350X", hint=f"--set config={_beside(config, 'MI355X')}", fatal=True
        )
    if variant.release not in order or any(
        run.values.get("config") == str(config) for run in book.runs if variant.release in run.releases
    ):
        return
    since = GPUS_SINCE.get(gpu, "")
    if since and order.index(variant.release) < order.index(since):
        flat = config.parent.parent / config.name
        other = _beside(config, "MI300X") if since == "v26.3" and variant.release not in order[:2] else flat
        yield Finding(
            message=f"{variant.release} has no folder {config.parent}: it came with {since}",
            hint=f"--set config={other}",
            fatal=True,
        )


def _gpu(plan: RunPlan, config: PurePosixPath) -> Iterator[Finding]:
    """Tell of a file for another GPU, where no recipe says that it is the one to take."""
    gpu, device = config.parent.name, plan.machine.device
    stand_in = read_book(BOOK).stand_in.get(device)
    if plan.settings.get("recipe") == "tree" and gpu in GPUS_SINCE and gpu not in (device, stand_in):
        yield Finding(message=f"{config.name} is made for {gpu}, this machine has {device}")


def _beside(config: PurePosixPath, gpu: str) -> PurePosixPath:
    return config.parent.parent / gpu / config.name


def _model(plan: RunPlan, config: PurePosixPath) -> Iterator[Finding]:
    """Check that a tag of MAD and its config file name the same model."""
    found = _TAG.search(plan.card.name)
    if not found:
        return
    asked, trained = _MODES.sub("", _SUFFIX.sub("", found[1])), config.name
    one, other = _letters(asked), _letters(trained)
    if not other.startswith(one) and not one.startswith(_letters(re.split(r"[-.](?=[A-Za-z])", trained)[0])):
        yield Finding(message=f"the tag says {asked}, and {trained} is what is trained")


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


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

"""What keeps a plan from starting; it still becomes a row."""

from __future__ import annotations

from madlite.model import (
    Blocked,
    Card,
    Cause,
    Image,
    Machine,
    Status,
)
from madlite.plan.given import Given
from madlite.plan.place import Granted


def find_blocked(given: Given, granted: Granted, image: Image | None, data_problem: str = "") -> Blocked | None:
    """Return what keeps the plan from starting, the user's own rule first."""
    card, options = given.request.card, given.options
    if card.is_deprecated and not options.ignore_deprecated:
        return _skip(Cause.DEPRECATED, f"card '{card.name}' is deprecated", "--ignore-deprecated runs it")
    arch = _skipped_arch(card, given.machine)
    if arch and not options.disable_skip_gpu_arch:
        return _skip(
            Cause.SKIPPED_ARCH,
            f"Skipping model {card.name}: it is not meant for {arch}",
            "--disable-skip-gpu-arch runs it",
        )
    if card.cred and given.credentials is not None and card.cred not in given.credentials:
        return _fail(
            Cause.PREPARE,
            f"card '{card.name}' needs credential '{card.cred}', credential.json has no table of that name",
        )
    if problem := _unfit_results(given):
        return _fail(Cause.PREPARE, problem)
    if given.draft.problem or data_problem:
        return _fail(Cause.PREPARE, given.draft.problem or data_problem)
    imageless = given.runtime.traits.containerised and image is None
    if imageless and given.draft.templates and not granted.blocked:  # an engine that is missing too would be of no use
        return _no_image(given)
    if given.runtime.blocked or granted.blocked:
        return given.runtime.blocked or granted.blocked
    return _no_image(given) if imageless else None


def _no_image(given: Given) -> Blocked:
    if given.draft.templates:  # of no use to it is a Dockerfile of the card's own
        return _fail(
            Cause.IMAGE,
            f"what backend '{given.backend}' renders for card '{given.request.card.name}' has no image",
            "--runtime host runs it on this machine, --image REF in a container",
        )
    reason = given.missing_image or f"card '{given.request.card.name}' names no image"
    return _fail(Cause.IMAGE, reason, "--image REF names one")


def _unfit_results(given: Given) -> str:
    """Return why a results file cannot have the name the card gives it: it would replace another one."""
    name, options = given.draft.result_rule.file, given.options
    place = options.workspace / name
    taken = {"perf.csv", "common_info.json", "build_manifest.json", "models.json", "data.json", "credential.json"}
    entries = {f"perf_{kind}.{end}" for kind in ("entry", "super", "entry_super") for end in ("csv", "json")}
    if not name or (name not in taken | entries and place != options.output and ".." not in place.parts):
        inside = not name or place.is_relative_to(options.workspace)
        return "" if inside else f"card '{given.request.card.name}' leaves its results in {name}, outside this folder"
    return f"card '{given.request.card.name}' leaves its results in {name}, which is another file's name"


def _skip(cause: Cause, reason: str, hint: str) -> Blocked:
    return Blocked(status=Status.SKIPPED, cause=cause, reason=reason, hint=hint)


def _fail(cause: Cause, reason: str, hint: str = "") -> Blocked:
    return Blocked(status=Status.FAILURE, cause=cause, reason=reason, hint=hint)


def _skipped_arch(card: Card, machine: Machine) -> str:
    """Return the architecture of this machine that the card wants to be skipped on.

    AMD: the gfx id.  NVIDIA: the whole name, or its second word up to the first dash (`A100` of `NVIDIA A100-SXM4`).
    """
    names = {machine.architecture}
    if machine.vendor == "NVIDIA":
        words = machine.architecture.split()
        names |= {words[1], words[1].split("-")[0]} if len(words) > 1 else set()
    return next((arch for arch in card.skip_gpu_arch if arch in names), "")

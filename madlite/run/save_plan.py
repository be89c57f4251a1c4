"""A plan that can start → the text of its plan file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path

from madlite.backends.loader import Plugins
from madlite.errors import RuntimeProblem
from madlite.images.client import connected, explained
from madlite.images.image import digest, inspect
from madlite.model import RunPlan
from madlite.plan.options import Options
from madlite.plan.plan_file import VERSION, PlannedFile, SavedPlan, plan_text
from madlite.plan.plan_secrets import name_secrets, secrets_in, without_told_secrets
from madlite.run.context import context_file
from madlite.run.one import secrets_for
from madlite.run.provenance import versions
from madlite.run.screen import Planned
from madlite.safe_read import digest_of
from madlite.secrets import Redactor


def saved_text(one: Planned, options: Options, plugins: Plugins, known: Mapping[str, str]) -> str:
    """Return the text of a plan file; `known` is what secrets can be read from at the run, by name.

    Raises:
        UsageProblem: the plan spells a secret out where no name can stand for it.
    """
    from madlite import __version__

    secrets = secrets_for(one, options.environ)
    plan = without_told_secrets(one.plan, secrets)
    names = name_secrets(plan, known)
    places: dict[str, tuple[str, ...]] = {}
    for secret in secrets_in(plan):
        if name := names[secret.secret.reveal()]:
            places[name] = (*places.get(name, ()), secret.place)
    context = context_file(one.context, Redactor(secrets).text)
    saved = SavedPlan(
        version=VERSION,
        madlite=__version__,
        planned=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=tuple(map(Redactor(secrets).text, options.command)),
        plugins=versions(plugins),
        pipeline=options.environ.get("pipeline", ""),
        build_number=options.environ.get("BUILD_NUMBER", ""),
        image_digest="" if plan.machine.pretended else local_digest(plan, options.environ),
        secrets=places,
        inputs=inputs_of(plan, plan.workspace),
        context=context.values,
        context_left_out=context.left_out,
        files=tuple(PlannedFile.of(file.path, file.template, file.data) for file in one.files),
        plan=plan,
    )
    return plan_text(saved, names, known)


def inputs_of(plan: RunPlan, workspace: Path) -> dict[str, str]:
    """Return the files of the working folder that a plan's run uses, relative to it, with their SHA-256."""
    found = {name: digest_of(workspace / name) for name in dict.fromkeys(_input_names(plan, workspace))}
    return {name: text for name, text in found.items() if text}


def _input_names(plan: RunPlan, workspace: Path) -> Iterator[str]:
    if plan.card.scripts and not plan.templates:
        yield from (plan.card.scripts, f"{plan.card.scripts}/run.sh")
    image = plan.image
    if image is not None and image.dockerfile is not None and not image.prebuilt:
        yield from _relative(str(image.dockerfile), str(workspace))
    for action in plan.actions:
        for word in action.argv:
            yield from _relative(word, plan.inside)


def _relative(word: str, folder: str) -> Iterator[str]:
    """Yield a path below a folder as it is named from there."""
    name = word.removeprefix(f"{folder}/")
    if name != word and ".." not in Path(name).parts:
        yield name


def local_digest(plan: RunPlan, environ: Mapping[str, str]) -> str:
    """Return the digest of the image that a plan finds on this machine's engine; "" for none, and one to be built."""
    image = plan.image
    if image is None or not (plan.traits.containerised and plan.traits.local) or plan.blocked is not None:
        return ""
    if image.dockerfile is not None and not image.prebuilt:
        return ""
    try:
        with explained(environ), connected(environ) as client:
            found = inspect(client, image.ref)
    except RuntimeProblem:
        return ""
    return digest(found, image.ref) if found is not None else ""

"""The values of a plan as `explain` names them, each with where it came from."""

from __future__ import annotations

import re
from collections.abc import Iterator

from madlite.cli.explain_compute import compute_rows
from madlite.model import ErrorScan, RunPlan, Secret
from madlite.plan.sizes import size_words

_EXPORT = re.compile(
    r"^ *(?:.*(?:\bthen|\|\|) )?export ([A-Za-z_]\w*(?:=.*?)?)(?:; fi)?(?: +# (.*))?$", re.ASCII | re.MULTILINE
)
_PAIR = re.compile(r"(?:^| )([A-Za-z_]\w*)=", re.ASCII)


def export_rows(plan: RunPlan, script: str) -> Iterator[tuple[str, str, str]]:
    """Yield what a rendered script exports beyond the plan's environment, as it stands there, with the script's why."""
    for text, why in _EXPORT.findall(script):
        pairs = _PAIR.split(text)[1:] if "=" in text and "$(" not in text else [*text.split("=", 1), ""][:2]
        for name, value in zip(pairs[::2], pairs[1::2], strict=True):
            if name not in plan.env:
                unset = re.fullmatch(rf"\$\{{{name}:?-(.*)\}}", value)
                words = f"{unset[1]}, unless it is set" if unset else value or "made where it runs"
                yield f"export.{name}", words, f"run.sh: {why}" if why else "run.sh"


def plan_rows(plan: RunPlan) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and origin of each value of a plan."""
    origins = plan.origins
    gpus = ",".join(map(str, plan.place.gpu_ids)) or "none"
    yield "machine", f"{len(plan.machine.gpus)} x {plan.machine.product}", origins.get("machine", "")
    yield "runtime", plan.runtime, origins.get("runtime", "")
    yield "n_gpus", f"{plan.place.gpus_per_node} (ids {gpus})", origins.get("n_gpus", "")
    yield "image", plan.image.ref if plan.image else "none", origins.get("image", "") if plan.image else ""
    limit = "none" if plan.timeout_s is None else f"{plan.timeout_s:g}"
    yield "timeout_s", limit, origins.get("timeout_s", "")
    for name, limit_s in (("start_silence_s", plan.start_silence_s), ("silence_s", plan.silence_s)):
        yield name, f"{limit_s:g}" if limit_s else "none", origins.get(name, "default")
    yield "stop_grace_s", f"{plan.stop_grace_s:g}", origins.get("stop_grace_s", "default")
    if plan.place.gpu_ids:
        switch = origins.get("telemetry", origins.get("telemetry_s", "default"))
        yield "telemetry_s", f"{plan.telemetry_s:g}" if plan.telemetry_s else "off", switch
    if not plan.probe:
        yield "probe", "off", origins.get("probe", "")
    yield "log_limit", size_words(plan.log_limit_bytes), origins.get("log_limit", "default")
    yield "launcher", plan.launcher or "-", origins.get("launcher", plan.backend or "default")
    yield from _value_rows(plan)
    yield from _image_rows(plan)
    for use in plan.data:
        yield f"data {use.name}", f"{use.provider}, in {use.home}", "data.json"
    for mount in plan.mounts:
        asked = any(use.home == mount.target for use in plan.data)
        origin = "data.json" if asked else origins.get("docker_mounts", "context")
        yield f"mount {mount.target}", mount.source, origins.get(f"mount {mount.target}", origin)


def _scan(scan: ErrorScan | None) -> str:
    if scan is None:
        return "off"
    return f"{', '.join(map(repr, scan.patterns))}; harmless: {', '.join(map(repr, scan.benign))}"


def _value_rows(plan: RunPlan) -> Iterator[tuple[str, str, str]]:
    """Yield sizes, settings, arguments and environment."""
    origins = plan.origins
    yield from _recipe_rows(plan)
    yield from compute_rows(plan)
    if origins.get("error_scan") and plan.result_rule.kind != "steps":
        yield "error_scan", _scan(plan.error_scan), origins["error_scan"]
    if plan.run_args:
        yield "args", plan.run_args, origins.get("args", "")
    for name, text in sorted(plan.env.items()):
        yield f"env.{name}", "***" if isinstance(text, Secret) else text, origins.get(f"env.{name}", "")


def _recipe_rows(plan: RunPlan) -> Iterator[tuple[str, str, str]]:
    """Yield the recipe, and what it came to: the variant and the backend's settings."""
    settings = dict(sorted(plan.settings.items()))
    if "recipe" in settings:
        yield "recipe", str(settings.pop("recipe")), _published(plan.origins.get("settings.recipe", ""))
    for name in plan.variant.__struct_fields__ if plan.variant is not None else ():
        value = getattr(plan.variant, name)
        yield f"variant.{name}", "-" if value in (None, "") else str(value), plan.origins.get(f"variant.{name}", "")
    for name, setting in settings.items():
        yield f"settings.{name}", _word(setting), plan.origins.get(f"settings.{name}", "")


def _published(origin: str) -> str:
    """Return where a recipe comes from, of an origin such as `recipe NAME (v25.10, MI300X; source)`."""
    return origin.partition(" (")[2].removesuffix(")") if origin.startswith("recipe ") else origin


def _image_rows(plan: RunPlan) -> Iterator[tuple[str, str, str]]:
    """Yield what the image is built from, and what a script of a card is called with."""
    if plan.image is not None and plan.image.dockerfile is not None:
        yield "dockerfile", str(plan.image.dockerfile), "card"
        yield "base_docker", plan.image.base or "-", "context, Dockerfile"
        for name, text in plan.image.build_args.items():
            yield f"build_arg.{name}", "***" if isinstance(text, Secret) else text, ""
    if plan.engine_options.extra:
        yield "docker options", plan.engine_options.extra, plan.origins.get("engine_options.extra", "card")
    for action in plan.actions:
        if action.kind in ("pre", "run", "post"):
            yield action.kind, action.argv[2] if action.argv[:2] == ("bash", "-c") else " ".join(action.argv), ""


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) if value != "" else '""'

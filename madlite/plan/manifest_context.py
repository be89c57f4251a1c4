"""The context of a build under the context of a run: what the run says wins, the rest is as it was."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from madlite.errors import UsageProblem
from madlite.model import Json
from madlite.plan.context import GPU_COUNTS, MACHINE_KEYS, Context, merge, read_context
from madlite.plan.context_keys import NOT_YET, Known
from madlite.plan.manifest import Manifest

# what tells of the build and of its machine alone
_OF_THE_BUILD = (
    "gpu_vendor",
    "host_os",
    "ctx_test",
    "gpu_renderDs",
    "docker_build_arg",
    "MAD_CONTAINER_IMAGE",
    *MACHINE_KEYS,
    *NOT_YET,
)


def context_over(manifest: Manifest, context: Context, environ: Mapping[str, str]) -> Context:
    """Return the run's context over the build's; a secret that the build had comes from the run's or the environment.

    Raises:
        UsageProblem: the manifest's context cannot be used, or a secret that it had is nowhere.
    """
    under = _of_build(manifest, context)
    variables = _required(manifest, context, environ)
    if variables:
        under = merge(under, {"docker_env_vars": variables})
    origin = f"context of {manifest.file.name}"
    settings = under.get("settings", {})
    values = merge(under, context.values)
    return msgspec.structs.replace(
        context,
        known=msgspec.convert(values, Known),
        values=values,
        file_settings={**settings, **context.file_settings},
        origins={**dict.fromkeys(under, origin), **context.origins},
    )


def _of_build(manifest: Manifest, context: Context) -> dict[str, Json]:
    left_out = {*_OF_THE_BUILD, *(GPU_COUNTS if context.n_gpus is not None else ())}
    taken = {
        key: value for key, value in manifest.context.items() if key not in left_out and value not in (None, "", {}, [])
    }
    try:
        return read_context(None, msgspec.json.encode(taken).decode()).values if taken else {}
    except UsageProblem as problem:
        raise UsageProblem(f"the context in {manifest.file} cannot be used: {problem.message}") from None


def _required(manifest: Manifest, context: Context, environ: Mapping[str, str]) -> dict[str, Json]:
    """Return the secret variables that the environment has, where the run's context has them not."""
    found: dict[str, Json] = {}
    missing = []
    for required in manifest.required:
        key, _, name = required.partition(".")
        if key in _OF_THE_BUILD:  # named for those who deploy it; no run here uses it
            continue
        given = context.values.get(key)
        if given is not None and (not name or name in given):
            continue
        if name and environ.get(name):
            found[name] = environ[name]
        else:
            missing.append(name or key)
    if missing:
        raise UsageProblem(
            f"{manifest.file} holds no secrets, and the build was given {', '.join(missing)}",
            f"export {missing[0]}=…   or give it with --additional-context",
        )
    return found

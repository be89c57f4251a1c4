"""The caches of compiled and tuned kernels that a plan's run uses, and which of them are whose.

What compiles or tunes at the first use of a shape makes a first run slow, and what it left makes the next one quick:
two numbers are compared only where both had it, or neither.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

from msgspec.structs import replace

from madlite.model import Mount, RunPlan
from madlite.plan.inputs import CACHES_INSIDE

CacheState: TypeAlias = Literal["", "cold", "warm", "user"]

# The variable of each cache, and its place below a study's folder.  Sources: PyTorch (Inductor, extensions, kernels
# compiled at run time, TunableOp, of which the file counts only where the plan switches it on), Triton, CUDA's driver,
# ROCm (MIOpen's databases and its compiled kernels, comgr).
_ANY = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "PYTORCH_KERNEL_CACHE_PATH": "kernels",
    "PYTORCH_TUNABLEOP_FILENAME": "tunableop/results%d.csv",
}
_OF_VENDOR = {
    "AMD": {
        "MIOPEN_USER_DB_PATH": "miopen",
        "MIOPEN_CUSTOM_CACHE_DIR": "miopen-kernels",
        "AMD_COMGR_CACHE_DIR": "comgr",
    },
    "NVIDIA": {"CUDA_CACHE_PATH": "cuda"},
    "CPU": {},
}
# where they are in a container that names none of them
_DEFAULT_PLACES = (
    *("/root/.cache/miopen", "/root/.config/miopen", "/root/.cache/comgr", "/root/.cache/torch", "/root/.triton"),
    *("/root/.cache/torch_extensions", "/root/.nv/ComputeCache", "/tmp/torchinductor_root"),  # noqa: S108
)
# what tunes where it is set at all: a study never sets it, and whoever does has a cache of their own
_TUNING = ("HIPBLASLT_TUNING_FILE", "HIPBLASLT_TUNING_OVERRIDE_FILE", "TE_HIPBLASLT_ALGO_LOAD")
CACHE_VARIABLES = frozenset((*_ANY, *(name for of in _OF_VENDOR.values() for name in of), *_TUNING))
"""The variables of caches: where two runs had theirs is no difference between them."""
# docker options that show a container folders which may hold caches
_MOUNTS = re.compile(r"(?:^|\s)(?:-v|--volume|--mount|--tmpfs)")
_INHERITED = ("", "environment")  # origins of a value that nobody chose for this run


def cache_folders(plan: RunPlan) -> tuple[str, ...]:
    """Return the folders below the caches of a plan's run, which must be there before it starts."""
    names = _variables(plan).values()
    return tuple(dict.fromkeys(str(PurePosixPath(name).parent) if "%" in name else name for name in names))


def with_caches_of(plan: RunPlan, other: RunPlan) -> RunPlan:
    """Return the plan with the caches that another plan of the same run has of its study."""
    if other.study is None:
        return plan
    names = [key for key, origin in other.origins.items() if key.startswith("env.") and origin == other.study.kind]
    variables = {name: other.env[name] for name in (key.removeprefix("env.") for key in names)}
    mounts = tuple(mount for mount in other.mounts if mount.target == CACHES_INSIDE)
    origins = {**plan.origins, **dict.fromkeys(names, other.study.kind)}
    return replace(plan, env={**plan.env, **variables}, mounts=(*plan.mounts, *mounts), origins=origins)


def with_caches(plan: RunPlan, folder: Path) -> RunPlan:
    """Return the plan with the caches of its run in a folder of this machine.

    A cache that the user or the card names stays where it is, which is noted: it is not the study's.
    """
    if plan.study is None:
        return plan
    if not plan.traits.local:  # its folders are those of another machine
        return replace(plan, study=replace(plan.study, caches=""))
    kept = _kept(plan)
    inside = CACHES_INSIDE if plan.traits.containerised else str(folder)
    variables = {name: f"{inside}/{place}" for name, place in _variables(plan).items() if name not in kept}
    mounts = (Mount(source=str(folder), target=CACHES_INSIDE),) if plan.traits.containerised else ()
    listed = ", ".join(f"{name} ({plan.origins.get(f'env.{name}', 'the plan')})" for name in kept)
    note = (f"not the study's own: the cache that {listed} names",) if kept else ()
    return replace(
        plan,
        env={**plan.env, **variables},
        mounts=(*plan.mounts, *mounts),
        notes=(*plan.notes, *note),
        origins={**plan.origins, **dict.fromkeys((f"env.{name}" for name in variables), plan.study.kind)},
        study=replace(plan.study, caches="") if kept else plan.study,
    )


def cache_state(plan: RunPlan) -> CacheState:
    """Return what a plan's run finds in the caches of compiled and tuned kernels, "" where that is not known.

    A container in which none of them comes from outside begins without any, but for what its image has.
    """
    if plan.study is not None and plan.study.caches:
        return plan.study.caches
    if not plan.traits.local:
        return ""
    if not plan.traits.containerised or any(name in plan.env for name in _TUNING):
        return "user"
    places = [str(value) for name, value in plan.env.items() if name in CACHE_VARIABLES]
    targets = [plan.inside, *(mount.target for mount in plan.mounts)]
    if any(_overlap(place, target) for place in (*places, *_DEFAULT_PLACES) for target in targets):
        return "user"
    return "" if _MOUNTS.search(plan.engine_options.extra) else "cold"


def _variables(plan: RunPlan) -> dict[str, str]:
    return {**_ANY, **_OF_VENDOR[plan.machine.vendor]}


def _kept(plan: RunPlan) -> list[str]:
    """Return the variables of caches that somebody chose for this run."""
    ours = _variables(plan)
    return [
        name
        for name in plan.env
        if (name in ours and plan.origins.get(f"env.{name}", "") not in _INHERITED) or name in _TUNING
    ]


def _overlap(place: str, target: str) -> bool:
    """Return whether a place is in a mounted folder, or that one in it."""
    source, other = PurePosixPath("/", place), PurePosixPath("/", target)
    return source.is_relative_to(other) or other.is_relative_to(source)

"""The variables that hide GPUs from a process: which GPUs they leave.

Sources: ROCm, "GPU isolation techniques" (ROCR_VISIBLE_DEVICES counts the machine's GPUs, HIP_VISIBLE_DEVICES those
that it leaves, and CUDA_VISIBLE_DEVICES is the same where that is not set); CUDA C++ Programming Guide, "CUDA
Environment Variables" (numbers or GPU-… ids; what follows a word that names none is hidden; numbers count from the
fastest GPU on unless CUDA_DEVICE_ORDER is PCI_BUS_ID, in which NVIDIA's tools count, and only CUDA knows what is fast).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from madlite.model import Gpu, Vendor

# what hides GPUs, in the order in which one counts what the one before it left; of several in a group the first counts
_HIDING: dict[Vendor, tuple[tuple[str, ...], ...]] = {
    "AMD": (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
    "NVIDIA": (("CUDA_VISIBLE_DEVICES",),),
    "CPU": (),
}


CUDA_ORDER, BY_BUS = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"


def is_uncertain(vendor: Vendor, gpus: Sequence[Gpu], env: Mapping[str, str]) -> bool:
    """Return whether numbers of an environment leave some of GPUs that are not all alike, and nobody knows which."""
    words = [word.strip() for word in env.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    counts = vendor == "NVIDIA" and env.get(CUDA_ORDER, "").strip() != BY_BUS and any(map(str.isdecimal, words))
    left = visible_gpus(vendor, gpus, env) or ()
    return counts and len(left) < len(gpus) and len({gpu.product for gpu in gpus}) > 1


def hiding_variables(vendor: Vendor) -> tuple[str, ...]:
    """Return the names of the variables that hide a vendor's GPUs."""
    return tuple(name for names in _HIDING[vendor] for name in names)


def visible_gpus(
    vendor: Vendor, gpus: Sequence[Gpu], env: Mapping[str, object], *, empty: bool = False
) -> list[Gpu] | None:
    """Return the GPUs that an environment leaves of these; None where no variable of it hides any.

    With `empty` a variable that is set to nothing leaves none, as it does for a process; else it is as if not set.
    """
    left, is_restricted = list(gpus), False
    for names in _HIDING[vendor]:
        texts = [value for name in names if isinstance(value := env.get(name), str) and (empty or value.strip())]
        if texts:
            is_restricted, left = True, _listed(left, texts[0])
    return left if is_restricted else None


def _listed(gpus: Sequence[Gpu], text: str) -> list[Gpu]:
    """Return the GPUs that a list names, by place or by id; what follows a word that is neither is hidden."""
    found: list[Gpu] = []
    for word in text.split(","):
        named = _named(gpus, word.strip())
        if named is None:
            break
        found += [named] if named not in found else []
    return found


def _named(gpus: Sequence[Gpu], word: str) -> Gpu | None:
    if word.isdecimal():
        return gpus[int(word)] if int(word) < len(gpus) else None
    wanted = word.lower().removeprefix("gpu-")
    same = [gpu for gpu in gpus if wanted and gpu.unique_id.lower().removeprefix("gpu-").startswith(wanted)]
    return same[0] if len(same) == 1 else None

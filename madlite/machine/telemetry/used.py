"""Which of a machine's GPUs a run uses, as the variables that hide GPUs from it leave them."""

from __future__ import annotations

from collections.abc import Sequence

from madlite.model import Gpu, RunPlan

# what hides GPUs, in the order in which one counts what the one before it left; of several in a group the first counts
_HIDING = {
    "AMD": (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
    "NVIDIA": (("CUDA_VISIBLE_DEVICES",),),
    "CPU": (),
}


def used_gpus(plan: RunPlan) -> tuple[Gpu, ...]:
    """Return the GPUs of a run: what it is granted, less what its environment hides.

    A container counts the GPUs it is given from 0, a process of the host those of the machine.  A list that names no
    GPU of ours is the workload's own business: then the granted ones are meant.
    """
    granted = [gpu for gpu in plan.machine.gpus if gpu.index in plan.place.gpu_ids]
    left = granted if plan.traits.containerised else list(plan.machine.gpus)
    asked = False
    for names in _HIDING[plan.machine.vendor]:
        text = next((value for name in names if isinstance(value := plan.env.get(name), str) and value.strip()), "")
        if text:
            asked, left = True, _visible(left, text)
    return tuple(left if asked and left else granted) if granted else ()


def _visible(gpus: Sequence[Gpu], text: str) -> list[Gpu]:
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

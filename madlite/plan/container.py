"""The container of a plan: image, devices, mounts, options and names, as MAD asks for them."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from madlite.files import is_file
from madlite.model import (
    Card,
    EngineOptions,
    Image,
    Machine,
    Mount,
    RunPlan,
)
from madlite.plan.images import built_image, flat, image_name
from madlite.plan.inputs import RunInputs
from madlite.plan.values import Resolved

RDMA = Path("/dev/infiniband")


def make_image(inputs: RunInputs, asked: str) -> Image | None:
    """Return a run's image: the one asked for, one built before, its Dockerfile's, or its backend's or card's."""
    if foreign := inputs.options.image or asked:
        return Image(ref=foreign)
    if of_context := inputs.context.known.MAD_CONTAINER_IMAGE:
        return Image(ref=of_context, from_context=True)
    if inputs.built is not None:
        return inputs.built
    if inputs.dockerfile is None:
        return Image(ref=inputs.draft.image) if inputs.draft.image else None
    architecture = inputs.machine.architecture if inputs.machine.gpus else ""
    return built_image(
        inputs.request.card,
        inputs.dockerfile,
        inputs.options,
        inputs.context,
        inputs.credentials or {},
        architecture=architecture,
    )


def image_origin(inputs: RunInputs, resolved: Resolved) -> str:
    """Return who decided the image."""
    if inputs.options.image:
        return "--image"
    if "image" in resolved.plan:
        return resolved.origins["image"]
    if inputs.context.known.MAD_CONTAINER_IMAGE:
        return inputs.context.origins.get("MAD_CONTAINER_IMAGE", "context")
    if inputs.built is not None:
        return "build manifest"
    if inputs.dockerfile:
        return "card's Dockerfile"
    return inputs.draft.origin.partition(" (")[0] if inputs.draft.image != inputs.request.card.image else "card"


def make_mounts(inputs: RunInputs) -> tuple[Mount, ...]:
    """Return the context's mounts; a relative path is below the workspace, docker would take it for a volume's name."""
    asked = inputs.context.known.docker_mounts.items()
    return tuple(Mount(source=str(inputs.options.workspace / host), target=inside) for inside, host in asked)


def make_key_mounts(inputs: RunInputs) -> tuple[Mount, ...]:
    """Return the mount of the key file that the card's clone needs, at the place where credential.json says it is."""
    key = (inputs.credentials or {}).get(inputs.request.card.cred, {}).get("ssh_key_file", "")
    readable = key.startswith("/") and is_file(Path(key)) and inputs.request.card.url
    return (Mount(source=key, target=key, read_only=True),) if readable else ()


def make_devices(machine: Machine, gpu_ids: tuple[int, ...]) -> tuple[str, ...]:
    """Return device files: /dev/fuse as MAD asks for, and AMD's /dev/kfd and render nodes."""
    if machine.vendor == "CPU":
        return ()
    if machine.vendor == "NVIDIA":
        return ("/dev/fuse",)
    minors = [gpu.render_minor for gpu in machine.gpus if gpu.index in gpu_ids and gpu.render_minor is not None]
    return ("/dev/fuse", "/dev/kfd", *(f"/dev/dri/renderD{minor}" for minor in minors))


def add_rdma(plan: RunPlan) -> RunPlan:
    """Return the plan of one of several nodes with the network cards that its container needs between them.

    RDMA pins memory, so that the limit of what may be pinned goes.  The card's and user's own options come after these.
    """
    if plan.place.whole:
        return plan
    if not RDMA.is_dir():
        text = f"one of {plan.place.nodes} nodes, and {RDMA} is not here: between nodes RCCL and NCCL use sockets alone"
        return replace(plan, notes=(*plan.notes, text))
    options = plan.engine_options
    asked = options.extra
    return replace(
        plan,
        devices=plan.devices if str(RDMA) in asked else (*plan.devices, str(RDMA)),
        engine_options=replace(
            options,
            cap_add=(*options.cap_add, "IPC_LOCK"),
            ulimits=options.ulimits if "memlock" in asked else (*options.ulimits, "memlock=-1"),
        ),
    )


def make_engine_options(inputs: RunInputs) -> EngineOptions:
    """Return how the container is started: the privileges MAD gives to each vendor's tools, none on a CPU."""
    vendor = inputs.machine.vendor
    caps = {"AMD": ("SYS_PTRACE", "SYS_ADMIN"), "NVIDIA": ("SYS_PTRACE", "SYS_ADMIN", "SYS_NICE"), "CPU": ()}[vendor]
    shared_memory = inputs.context.known.SHM_SIZE
    own = inputs.context.known.additional_docker_run_options
    extra = " ".join(filter(None, (inputs.request.card.additional_docker_run_options, own)))
    return EngineOptions(
        ipc="" if shared_memory else "host",
        group_add=("video",) if vendor == "AMD" else (),
        cap_add=caps,
        security_opt=("seccomp=unconfined", "apparmor=unconfined") if vendor != "CPU" else (),
        cpuset=(inputs.context.known.docker_cpus or "").replace(" ", ""),
        extra=f"{extra} --shm-size={shared_memory}" if shared_memory else extra,
    )


def container_name(image: Image | None, contract: int = 0) -> str:
    """Return the container's name as MAD's tooling looks for it; that of version 1 has not the image's `ci-`."""
    if image is None:
        return ""
    name = flat(image.ref)
    return f"container_{name.removeprefix('ci-') if contract == 1 and image.dockerfile else name}"


def log_name(card: Card, image: Image | None) -> str:
    """Return what the names of a run's logs in the workspace begin with, as MAD's tooling looks for them."""
    if image is None:
        return f"{flat(card.name)}_host"
    own = f"{image_name(card.name, '')}_"  # the rest of such a name: the Dockerfile, and what GPUs it was built for
    if image.dockerfile is not None:
        built_for = image.ref.startswith(own)
        part = image.ref.removeprefix(own) if built_for else image.dockerfile.name.removesuffix(".Dockerfile")
    else:
        part = flat(image.ref)
    return f"{flat(card.name)}_{part}"

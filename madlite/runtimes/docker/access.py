"""What of a machine a run asks for beyond what every container of MAD's has, in one line for the user.

MAD's own is not told: root in the container, the host's network and IPC, the working folder, the GPUs' devices,
SYS_PTRACE and SYS_ADMIN, neither seccomp nor AppArmor.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from madlite.model import Image, RunPlan
from madlite.runtimes.docker.options import given_options, mount, seccomp_file
from madlite.safe_read import spells
from madlite.secrets import Redactor, collect

_CAPABILITIES = {"SYS_PTRACE", "SYS_ADMIN", "SYS_NICE"}
_CONFINED = re.compile(r"seccomp[=:](unconfined|builtin)|apparmor[=:](unconfined|docker-default)|no-new-privileges.*")
_OF_GPUS = re.compile(r"/dev/(kfd|dri|fuse|nvidia[^/]*)(/.*)?")
_ENGINE = re.compile(r".*/(docker|podman|containerd|crio)\.sock|/run/docker|/var/run/docker")
_SPACES = ("--pid", "--uts", "--userns", "--cgroupns", "--ipc")
_MOST, _LONGEST = 12, 200


def host_access(plan: RunPlan, environ: Mapping[str, str]) -> str:
    """Return what docker options, Dockerfile and build context open of this machine; "" for nothing of note."""
    found = dict.fromkeys((*_of_options(plan, environ), *image_access(plan.image)))
    if not found:
        return ""
    shown = [text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…" for text in found][:_MOST]
    more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
    mask = Redactor(collect(environ)).text
    return mask(f"the run opens this machine to its container: {', '.join(shown)}{more}")


def image_access(image: Image | None) -> Iterator[str]:
    """Yield the Dockerfile and the contexts of a build that lie outside of the checkout, links followed."""
    if image is None or image.dockerfile is None or image.root is None or image.prebuilt:
        return
    root = Path(os.path.realpath(image.root))
    if not spells(image.dockerfile, image.root):
        yield f"Dockerfile {os.path.realpath(image.dockerfile)}"
    for context in (image.context or image.dockerfile.parent, *image.contexts.values()):
        place = os.path.realpath(context)
        if not Path(place).is_relative_to(root):
            yield f"build context {place}"


def _of_options(plan: RunPlan, environ: Mapping[str, str]) -> Iterator[str]:
    try:
        given = given_options(plan.engine_options.extra, environ)
    except ValueError:  # told where the container is asked for
        return
    for names, values in given:
        name = names[-1]
        for value in values:
            yield from _of_option(name, value, plan.workspace)


def _of_option(name: str, value: str | bool, workspace: Path) -> Iterator[str]:
    text = str(value)
    if name in _TOLD:
        yield from _TOLD[name](text, workspace)
    elif name == "--privileged" and value is True:
        yield name
    elif name in _SPACES and (text.startswith("container:") or (text == "host" and name != "--ipc")):
        yield f"{name}={text}"
    elif name in ("--env-file", "--volumes-from", "--device-cgroup-rule"):
        yield f"{name} {text}"


def _volume(text: str, workspace: Path) -> Iterator[str]:
    source, colon, rest = text.partition(":")
    if colon and source.startswith(("/", ".", "~")):
        yield from _bind(source, rest.partition(":")[0], workspace)


def _mount(text: str, workspace: Path) -> Iterator[str]:
    try:
        found = mount(text)
    except ValueError:
        return
    if found["Type"] == "bind":
        yield from _bind(str(found.get("Source", "")), str(found["Target"]), workspace)


def _bind(source: str, target: str, workspace: Path) -> Iterator[str]:
    """Yield a mount of what lies outside of the working folder, links followed, for docker follows them too."""
    place = os.path.realpath(workspace / source)
    if _ENGINE.fullmatch(place) or _ENGINE.fullmatch(source):
        yield f"mount of {place}, the engine's socket: who has it is root on this machine"
    elif not Path(place).is_relative_to(os.path.realpath(workspace)):
        yield f"mount of {place}" + (f" at {target}" if target != place else "")


def _device(text: str, _workspace: Path) -> Iterator[str]:
    host = text.partition(":")[0]
    if not _OF_GPUS.fullmatch(os.path.normpath(host)):
        yield f"--device {host}"


def _capability(text: str, _workspace: Path) -> Iterator[str]:
    if text.upper().removeprefix("CAP_") not in _CAPABILITIES:
        yield f"--cap-add {text}"


def _security(text: str, _workspace: Path) -> Iterator[str]:
    if seccomp_file(text) or not _CONFINED.fullmatch(text):
        yield f"--security-opt {text}"


_TOLD: dict[str, Callable[[str, Path], Iterator[str]]] = {
    "--volume": _volume,
    "--mount": _mount,
    "--device": _device,
    "--cap-add": _capability,
    "--security-opt": _security,
}

"""Where a plan runs: which runtime, and which GPUs of the machine."""

from __future__ import annotations

from collections.abc import Callable

from madlite.errors import UsageProblem
from madlite.plan.context import Context
from madlite.plan.options import Options
from madlite.types import Blocked, Card, Cause, Machine, Place, Problem, Status, Value

Availability = Callable[[str], "Problem | None"]


class Choice(Value, frozen=True):
    """The runtime of a plan, who decided, and why it cannot start if it cannot."""

    runtime: str
    origin: str
    note: str = ""
    blocked: Blocked | None = None


class Granted(Value, frozen=True):
    """The GPUs a run gets; `blocked` when the machine has too few."""

    gpu_ids: tuple[int, ...]
    note: str = ""
    blocked: Blocked | None = None


def choose_runtime(card: Card, options: Options, has_image: bool, available: Availability) -> Choice:
    """Return docker unless asked otherwise; host by itself only for cards that list it and no engine answers.

    Raises:
        UsageProblem: the runtime asked for is not one the card lists.
    """
    if options.runtime:
        return _asked_for(card, options.runtime, available)
    listed = card.runtimes or ("docker",)
    if "docker" not in listed:
        return Choice(runtime=listed[0], origin="card")
    if "host" in listed and not has_image:
        return Choice(runtime="host", origin="card", note="runs on the host: the card names no image")
    problem = available("docker")
    if problem is None:
        return Choice(runtime="docker", origin="default" if not card.runtimes else "card")
    if "host" in listed:
        return Choice(runtime="host", origin="card", note=f"runs on the host: {problem.what}")
    return Choice(runtime="docker", origin="default", blocked=_unreachable(problem))


def _asked_for(card: Card, runtime: str, available: Availability) -> Choice:
    if card.runtimes and runtime not in card.runtimes:
        raise UsageProblem(
            f"card '{card.name}' does not run on runtime '{runtime}' (it lists {', '.join(card.runtimes)})",
            f"--runtime {card.runtimes[0]}",
        )
    problem = available(runtime)
    return Choice(runtime=runtime, origin="--runtime", blocked=_unreachable(problem) if problem else None)


def _unreachable(problem: Problem) -> Blocked:
    return Blocked(
        status=Status.FAILURE, cause=Cause.ENGINE, reason=problem.what, hint="start it, or see madlite run --help"
    )


def grant_gpus(card: Card, machine: Machine, context: Context, asked: int | None) -> Granted:
    """Return the first GPUs of the visible ones that the card asks for; -1 asks for all of them.

    Visible are the context's `docker_gpus` (`0,2-4`), else all.  On a CPU machine there is none to grant.

    Raises:
        UsageProblem: `docker_gpus` is no list of GPU numbers.
    """
    visible = expand_ids(context.known.docker_gpus) or tuple(gpu.index for gpu in machine.gpus)
    count = asked if asked is not None else context.n_gpus if context.n_gpus is not None else int(card.n_gpus)
    if machine.vendor == "CPU":
        note = f"no GPU here: runs on the CPU, though the card asks for {count}" if count > 0 else ""
        return Granted(gpu_ids=(), note=note)
    wanted = len(visible) if count < 0 else count
    have = {gpu.index for gpu in machine.gpus}
    missing = sorted(set(visible) - have)
    if wanted > len(have) or wanted > len(visible) or missing:
        return Granted(gpu_ids=(), blocked=_too_few(card, wanted, len(have), visible, missing))
    return Granted(gpu_ids=visible[:wanted])


def _too_few(card: Card, wanted: int, have: int, visible: tuple[int, ...], missing: list[int]) -> Blocked:
    if missing:
        reason = f"docker_gpus names GPU {', '.join(map(str, missing))}, this machine has 0 to {have - 1}"
    elif wanted > have:
        reason = f"card '{card.name}' asks for {wanted} GPUs, this machine has {have}"
    else:
        reason = f"card '{card.name}' asks for {wanted} GPUs, docker_gpus leaves {len(visible)}"
    return Blocked(
        status=Status.FAILURE, cause=Cause.GPUS, reason=reason, hint=f"--set n_gpus={min(have, len(visible))}"
    )


def expand_ids(text: str | None) -> tuple[int, ...]:
    """Return the numbers of a list such as `0,2-4`, sorted; nothing for an empty one.

    Raises:
        UsageProblem: it is no such list.
    """
    ids: set[int] = set()
    for part in (text or "").replace(" ", "").strip("{}").split(","):
        first, dash, last = part.partition("-")
        if not part:
            continue
        if not first.isdigit() or (dash and not last.isdigit()):
            raise UsageProblem(f"docker_gpus {text!r} is no list of GPU numbers", 'write it like "0,2-4"')
        ids |= set(range(int(first), int(last if dash else first) + 1))
    return tuple(sorted(ids))


def make_place(machine: Machine, runtime: str, gpu_ids: tuple[int, ...]) -> Place:
    """Return the place of a local run."""
    engine = "docker" if runtime == "docker" else "none"
    return Place(where="local", engine=engine, nodes=1, gpus_per_node=len(gpu_ids), gpu_ids=gpu_ids)  # type: ignore[arg-type]

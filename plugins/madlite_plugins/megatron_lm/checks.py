"""What a training script would refuse or quietly change, of sizes, precision, parallelism and steps."""

from __future__ import annotations

from collections.abc import Iterator

from madlite import Finding, RunPlan, Variant
from madlite_plugins.choices import checkpoint_findings
from madlite_plugins.megatron_lm.book import release_before
from madlite_plugins.megatron_lm.scripts import Script, plan_variables, read_scripts, script_name, spell_precision

_DEGREES = ("tp", "pp", "cp")


def findings(plan: RunPlan) -> Iterator[Finding]:
    """Yield what is wrong with a plan of this backend, but for its inputs."""
    if plan.variant is None:
        return
    script = read_scripts().get(str(plan.settings["script"]))
    if script is not None:
        yield from _size(plan, script)
        yield from _limits(plan, plan.variant, script)
    yield from _precision(plan, plan.variant, script)
    yield from checkpoint_findings(plan)
    yield from _variables(plan)
    if plan.settings.get("enable_profiling") and not plan.settings.get("log_dir", "-"):
        yield Finding(message="the traces go with the script's own log", hint="--set log_dir=FOLDER keeps them")
    yield from _world(plan, plan.variant, script)


def _size(plan: RunPlan, script: Script) -> Iterator[Finding]:
    size, most = str(plan.settings.get("model_size", "")), int(plan.settings["most_layers"])
    layers = int(plan.settings.get("num_layers", 0))
    if script.sizes and size not in script.sizes:
        near = size.upper().removesuffix("B")
        hint = f"--set model_size={near}" if near in script.sizes else f"one of {', '.join(script.sizes)}"
        yield Finding(
            message=f"{script_name(plan)} has no MODEL_SIZE {size!r}", hint=hint, fatal=True, keys=("model_size",)
        )
    if layers < 0:
        yield Finding(message=f"num_layers is {layers}", hint="--set num_layers=N", fatal=True, keys=("num_layers",))
    elif most and plan.place.nodes == 1 and not 0 < layers <= most:
        what = f"{layers} layers" if layers else "all layers"
        yield Finding(
            message=f"one node has no memory for {what} of {size}: its proxy has {most} at most",
            hint=f"--set num_layers={most}, or --set nnodes= for more nodes",
            fatal=True,
            keys=("num_layers", "model_size", "nnodes"),
        )
    elif layers:
        yield Finding(message=f"a proxy of {layers} layers: its numbers are not the full model's")


def _limits(plan: RunPlan, variant: Variant, script: Script) -> Iterator[Finding]:
    """Check what depends on the script's version, and on where it ends by itself."""
    given = {variable.name: variable.key for variable in plan_variables(plan)}
    for name, first in script.since.items():
        key = given.get(name, "")
        if release_before(variant.release, first) and plan.settings.get(key):
            yield Finding(
                message=f"{script_name(plan)} of image release {variant.release} takes no {name} ({key})",
                hint=f"--image-release {first} or later",
                fatal=True,
                keys=(key, "release"),
            )
    if script.most_steps and (variant.steps or 0) > script.most_steps:
        yield Finding(
            message=f"{script_name(plan)} ends after {script.most_steps} steps, {variant.steps} are requested",
            hint=f"--steps {script.most_steps}",
            fatal=True,
            keys=("steps",),
        )
    ids = plan.place.gpu_ids
    if script.sets_devices and not plan.traits.containerised and ids != tuple(range(len(ids))):
        yield Finding(
            message=f"{script_name(plan)} sets HIP_VISIBLE_DEVICES itself, to the GPUs from 0 on",
            hint="run it in a container: --runtime docker",
            fatal=True,
            keys=("runtime", "docker_gpus"),
        )


def _precision(plan: RunPlan, variant: Variant, script: Script | None) -> Iterator[Finding]:
    known = script.precisions if script else ()
    if known and variant.precision not in known:
        message = f"{script_name(plan)} does not train in {variant.precision!r}"
        yield Finding(message=message, hint=f"one of {', '.join(known)}", fatal=True, keys=("precision",))
        return
    for key, meant in spell_precision(variant.precision).items():
        text = str(plan.settings.get(key, ""))
        if text and text != meant:
            yield Finding(
                message=f"{key} {text} is not {variant.precision}, which the result's row would have",
                hint=f"leave {key} out: --precision decides it",
                fatal=True,
                keys=(key, "precision"),
            )


def _variables(plan: RunPlan) -> Iterator[Finding]:
    taken = {variable.key for variable in plan_variables(plan)}
    if not taken:
        yield Finding(
            message=f"which variables {script_name(plan)} takes is not known",
            hint="--set variables='MBS=micro_batch BS=global_batch …'",
            fatal=True,
            keys=("script", "variables"),
        )
    elif plan.place.nodes > 1 and "nnodes" not in taken:
        yield Finding(
            message=f"{script_name(plan)} trains on one node alone", hint="NNODES=1", fatal=True, keys=("nnodes",)
        )


def _world(plan: RunPlan, variant: Variant, script: Script | None) -> Iterator[Finding]:
    world = plan.place.gpus_per_node * plan.place.nodes
    fixed = script.fixed if script else {}
    degrees = {key: int(plan.settings.get(key, fixed.get(key, 1))) for key in (*_DEGREES, "ep", "etp")}
    if world < 1:
        yield Finding(
            message="no GPU is granted, and the scripts train on GPUs alone",
            hint="--set n_gpus=-1",
            fatal=True,
            keys=("n_gpus",),
        )
    elif wrong := [f"{key}={n}" for key, n in degrees.items() if n < 0]:
        yield Finding(
            message=f"parallel degrees are 1 or more, 0 for the script's own: {', '.join(wrong)}",
            fatal=True,
            keys=(*_DEGREES, "ep", "etp"),
        )
    elif more := _beside_fsdp(plan, degrees):
        yield Finding(
            message=f"FSDP goes without tensor, pipeline and expert parallelism, and the plan has {', '.join(more)}",
            hint=" ".join(f"--set {degree.partition('=')[0]}=1" for degree in more),
            fatal=True,
            keys=("fsdp", *_DEGREES, "ep", "etp"),
        )
    else:
        yield from _mesh(plan, variant, degrees, world)


def _beside_fsdp(plan: RunPlan, degrees: dict[str, int]) -> list[str]:
    return [f"{key}={n}" for key, n in degrees.items() if plan.settings.get("fsdp") and n > 1 and key != "cp"]


def _mesh(plan: RunPlan, variant: Variant, degrees: dict[str, int], world: int) -> Iterator[Finding]:
    """Check that the ranks can be shared out, and the global batch over them."""
    if not degrees["tp"] and not plan.settings.get("fsdp"):  # the script's own degree: nothing is known
        return
    shape = {key: max(1, degrees[key]) for key in _DEGREES}
    parallel = shape["tp"] * shape["pp"] * shape["cp"]
    if world % parallel:
        words = " × ".join(f"{key} {n}" for key, n in shape.items())
        hint = f"--set n_gpus={parallel}, or smaller degrees" if plan.place.nodes == 1 else "smaller degrees"
        yield Finding(
            message=f"{words} does not fit {world} rank(s)", hint=hint, fatal=True, keys=(*_DEGREES, "n_gpus", "nnodes")
        )
        return
    experts = max(1, degrees["ep"]) * (degrees["etp"] or shape["tp"]) * shape["pp"]
    if world % experts:
        yield Finding(
            message=f"ep {degrees['ep']} does not fit {world} rank(s)",
            hint=f"--set n_gpus={experts}",
            fatal=True,
            keys=(*_DEGREES, "ep", "etp", "n_gpus", "nnodes"),
        )
    ranks = world // parallel
    local = (variant.micro_batch or 1) * ranks
    if variant.global_batch and variant.global_batch % local:
        yield Finding(
            message=f"global batch {variant.global_batch} is no multiple of micro batch {variant.micro_batch} × "
            f"{ranks} data ranks = {local}",
            hint=f"--set global_batch={max(1, variant.global_batch // local) * local}",
            fatal=True,
            keys=("global_batch", "micro_batch", *_DEGREES, "n_gpus", "nnodes"),
        )

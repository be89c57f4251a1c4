"""How runs are worded on the screen: one line each, the reason with a failure."""

from __future__ import annotations

from collections.abc import Sequence

from madlite.run.folder import HANDLE
from madlite.safe_read import read_regular
from madlite.types import Quantity, Result, RunPlan, Status, Step, Window

_HANDLE_BYTES = 4096


def title(plan: RunPlan, position: int, total: int) -> str:
    """Return the line a run starts with, in words that MAD's tooling looks for."""
    variant = plan.variant
    what = [plan.card.name if plan.blocked else f"Running model {plan.card.name}"]
    what += [plan.backend] if plan.backend else []
    if plan.image is not None:
        what.append(plan.image.ref)
    if variant:
        what += [part for part in (variant.mode, variant.precision) if part]
    gpus = f"{plan.place.gpus_per_node}x{plan.machine.device}" if plan.place.gpus_per_node else "cpu"
    return f"[{position}/{total}] " + " · ".join([*what, plan.runtime, gpus])


def step_line(plan: RunPlan, step: Step) -> str:
    """Return a training step in words: number, speed, loss."""
    total = plan.variant.steps if plan.variant and plan.variant.steps else None
    parts = [f"step {step.n}/{total}" if total else f"step {step.n}"]
    speeds = (Quantity.TOKENS_PER_S_PER_GPU, Quantity.SAMPLES_PER_S_PER_GPU, Quantity.IMAGES_PER_S_PER_GPU)
    speed = next((quantity for quantity in speeds if quantity in step.values), None)
    if speed is not None:
        value = step.values[speed]
        parts.append(f"{value:,.0f} {speed.value}" if value >= 100 else f"{value:,.2f} {speed.value}")
    if Quantity.LOSS in step.values:
        parts.append(f"loss {step.values[Quantity.LOSS]:.4g}")
    return "  ".join(parts)


def verdict_line(plan: RunPlan, result: Result) -> str:
    """Return the outcome in one line."""
    name = plan.card.name
    if result.status is not Status.SUCCESS:
        cause = f" [{result.code}]" if result.code else ""
        return f"{result.status.value} {name}{cause} {short_reason(result)}"
    return f"{status_words(result.status.value, result.suspect)} {name}  {figures(result)}"


def status_words(status: str, suspect: Sequence[str]) -> str:
    """Return a status, with a word for a number that is doubtful."""
    return f"{status} (suspect)" if suspect else status


def short_reason(result: Result) -> str:
    """Return why a run is no success without its cause and what to do, which have places of their own."""
    found = result.diagnosis
    if found is None:
        return result.reason
    return result.reason.removesuffix(f"; {found.hint}").removesuffix(f" ({found.cause})")


def figures(result: Result) -> str:
    """Return a success's numbers: the window's median where there is one, else the first metrics."""
    window = result.window
    if window is not None:
        headline = result.metrics[-1]
        less = "; less is better" if headline.lower_is_better else ""
        return f"{headline.text} {headline.metric} ({window_words(window)}{less})"
    good = [metric for metric in result.metrics if metric.status is Status.SUCCESS]
    shown = [f"{metric.label + ' ' if metric.label else ''}{metric.text} {metric.metric}" for metric in good]
    more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
    return ", ".join(shown[:3]) + more


def window_words(window: Window) -> str:
    """Return what a median is of; of one step nothing can be said of how far they scatter."""
    if window.n == 1:
        return f"of step {window.first_step} alone"
    return f"median of {window.n} steps, {window.first_step} to {window.last_step}, CV {100 * window.cv:.1f} %"


def mad_figures(result: Result) -> str:
    """Return the metrics beside the window's median: what MAD's own parsers would have taken from the log."""
    return ", ".join(f"{metric.text} {metric.metric}" for metric in result.metrics[:-1])


def kept(plan: RunPlan) -> list[str]:
    """Return what a run left in place because it was asked to, and how to reach or remove it."""
    if plan.blocked is not None:
        return []
    lines = []
    if plan.keep_alive and plan.runtime == "docker":
        lines.append(f"kept: a container labelled madlite.run={plan.id}; madlite clean --kept --yes removes it")
        handle = _handle(plan)
        lines += [f"kept: docker exec -it {handle[:12]} bash   opens a shell in it"] if handle else []
    elif plan.keep_alive:
        lines.append("kept: what the run left running; madlite clean --kept --yes ends it")
    if (plan.keep_alive or plan.keep_model_dir) and plan.model_dir:
        lines.append(f"kept: {plan.model_dir}/")
    return lines


def _handle(plan: RunPlan) -> str:
    """Return the id of a run's container; "" where none was started."""
    try:
        return read_regular(plan.folder / HANDLE, _HANDLE_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return ""


def duration(seconds: float) -> str:
    """Return a duration as people say it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"

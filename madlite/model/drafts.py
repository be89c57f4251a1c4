"""What a backend answers about a card."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from madlite.model.architectures import Architecture, Attention, Shape
from madlite.model.quantities import Quantity
from madlite.model.values import EnvValue, Scalar, Value


class Variant(Value, frozen=True):
    """One combination a backend can run: model × mode × precision, with sizes per GPU.

    `micro_batch` is sequences per GPU and forward pass, `global_batch` sequences per optimizer step over all GPUs,
    `seq_len` tokens, `warmup_steps` the first steps whose speed says nothing.
    """

    model: str
    mode: str = "pretrain"
    precision: str = ""
    seq_len: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    steps: int | None = None
    warmup_steps: int = 5
    release: str = ""


class FileTemplate(Value, frozen=True):
    """A file of the run folder: rendered from `template`, or copied byte for byte where `raw`."""

    path: str  # relative to the run folder
    template: str  # name on the template search path, e.g. torchtitan/run.sh.j2
    raw: bool = False


class MadMetric(Value, frozen=True):
    """A result row that MAD's own parser would have written: its name and its rule over the printed steps.

    `rule`: `last` the last printed value; `mean` and `max` over `[start:stop]` of the printed values, as Python slices
    do, or over their second half; `summary` a figure the framework prints once (`key` names it).
    """

    metric: str
    quantity: Quantity | None = None
    rule: Literal["last", "mean", "max", "summary"] = "last"
    start: int = 0
    stop: int | None = None
    second_half: bool = False  # of an odd number of values the one in the middle too
    key: str = ""


class ResultRule(Value, frozen=True):
    """Where a run's result comes from.

    `performance_line`: MAD's `performance: <number> <metric>`; `multiple_results`: the CSV named `file`; `steps`: the
    steady window of the backend's steps, `headline` being its metric, plus `mad` for published numbers.  `columns` are
    settings of the plan that its rows have as columns too.  `attention` is how the framework counts the work of its
    own TFLOP/s, and how ours is counted beside it.  `end_mark` is what the framework prints at each training's end.
    `ranks` is `all` where each rank of a node prints its steps, `ranks_setting` a setting that lists those which do.
    `printed_on` is the node, of several, that prints the steps: `each` of them, or the first or the last alone.
    """

    kind: Literal["performance_line", "multiple_results", "steps"] = "performance_line"
    file: str = ""
    headline: Quantity = Quantity.TOKENS_PER_S_PER_GPU
    headline_metric: str = "tokens_per_s_per_gpu"
    mad: tuple[MadMetric, ...] = ()
    loss_expected: bool = True
    columns: tuple[str, ...] = ()
    attention: Attention = "full"
    end_mark: str = ""
    ranks: Literal["", "all"] = ""
    ranks_setting: str = ""
    printed_on: Literal["each", "first", "last"] = "each"


class Action(Value, frozen=True):
    """One command of a session; `cwd` is relative to the workspace, `env` is the command's alone.

    `{folder}` in `cwd` stands for the run folder; a `cwd` or a word of `argv` that is `{model_dir}` for the folder
    that a MAD script runs in.  In a draft, one of kind `pre`, `data` or `post` without argv marks where the context's
    scripts and the fetching of data have their place.
    """

    kind: Literal["prepare", "clone", "pre", "data", "run", "post", "clean"]
    argv: tuple[str, ...]
    cwd: str = "."
    timeout_s: Annotated[float, Meta(gt=0)] | None = None
    env: dict[str, EnvValue] = {}


class Draft(Value, frozen=True):
    """A backend's answer for one variant: what it wants, before card, context and options have their say."""

    variant: Variant | None = None
    templates: tuple[FileTemplate, ...] = ()  # the one with path run.sh is what runs, where actions is empty
    actions: tuple[Action, ...] = ()
    settings: dict[str, Scalar] = {}  # the backend's own knobs, open to card, context, tag and --set
    env: dict[str, str] = {}
    image: str = ""
    launcher: str = ""
    result_rule: ResultRule = ResultRule()
    readers: tuple[str, ...] = ()  # backends whose readers follow the log, this backend's own where empty
    origin: str = ""  # where the values came from, e.g. "recipe demo.toml"
    problem: str = ""  # why this cannot start here; it becomes a FAILURE row
    outputs: tuple[str, ...] = ()  # glob patterns of what the run leaves in its folder for the workspace
    notes: tuple[str, ...] = ()  # what the user should know of how this draft was chosen
    left_out: dict[str, str] = {}  # other runs of the card, as `mode precision`, and the releases that alone have them
    architecture: Architecture | None = None  # of the model, where madlite's own table does not have its name
    shape: Shape = Shape()  # what of the draft may change that
    chosen: tuple[str, ...] = ()  # keys whose values were asked for and chosen by: nothing overrides them afterwards
    tag_args: bool = False  # whether what a tag adds beyond known keys are arguments, as for a MAD card's script
    runtimes: tuple[str, ...] = ()  # where it can run without an image, of a card that does not say
    declared: tuple[str, ...] = ()  # keys whose values the user says are true of what runs, which is not told them


class ErrorScan(Value, frozen=True):
    """Text that makes a run with a result a FAILURE where its log has it, and what makes a line of it harmless.

    Both are plain text, upper and lower case told apart.
    """

    patterns: tuple[str, ...]
    benign: tuple[str, ...] = ()

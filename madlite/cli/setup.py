"""What a command needs before the engine can start; the only place that reads the process's environment."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from madlite.backends.loader import Plugins, load_with_readers
from madlite.catalog.cards import Catalog, odd_fields, select, split_tags, tag_names, unmatched, without_repeats
from madlite.catalog.sources import bundled_models, load_catalog
from madlite.cli.arguments import contract, named_values
from madlite.cli.options import spelled
from madlite.cli.terminal import echo_on, mask
from madlite.errors import UsageProblem
from madlite.files import exists, is_folder, shown
from madlite.model import CardItem, Json, Machine, Problem, Request, Runtime, TreeCards
from madlite.plan.context import (
    ASKED,
    GPUS_OPTION,
    MACHINE_KEYS,
    TRANSLATED,
    Context,
    Options,
    context_on,
    read_context,
    unused_keys,
)

if TYPE_CHECKING:
    from madlite.plan.cluster import KubernetesSettings
    from madlite.plan.recipe_file import RecipeFile


# Where a command line finds cards and templates: $MADLITE_HOME, and $MODEL_DIR in place of the working folder.


def home() -> Path | None:
    """Return $MADLITE_HOME, where models.json and templates/ are looked for first."""
    named = os.environ.get("MADLITE_HOME")
    return Path(named) if named else None


def find_workspace(touch: bool) -> Path:
    """Return the working folder, or, for a command that may not `touch` it, the folder that MODEL_DIR would bring.

    Raises:
        UsageProblem: MODEL_DIR names no folder.
    """
    here = Path.cwd()
    return here if touch else find_model_dir(os.environ, here) or here


def find_model_dir(environ: Mapping[str, str], workspace: Path) -> Path | None:
    """Return the folder that MODEL_DIR names; None where it names none, or the working folder itself.

    Raises:
        UsageProblem: there is no such folder.
    """
    if not environ.get("MODEL_DIR"):
        return None
    folder = workspace / environ["MODEL_DIR"]
    if not is_folder(folder):
        raise UsageProblem(f"MODEL_DIR={environ['MODEL_DIR']} is no folder", "unset MODEL_DIR, or name a MAD checkout")
    return None if folder.resolve() == workspace.resolve() else folder.resolve()


# The catalogue of a command line: the working folder's cards, plugins' own and those of `--cards-from`, madlite's.


def load_cards(
    plugins: Plugins, workspace: Path, trees: Sequence[Path] = (), tags: Sequence[str] | None = None
) -> Catalog:
    """Return every card of this folder, plugins and madlite itself; `trees` are the folders of `--cards-from`.

    With `tags`, programs that list cards are executed only where they may list one that is selected.

    Raises:
        UsageProblem: one of the trees is no folder, or none that a plugin knows.
        CatalogError: as `load_catalog`.
    """
    trees = tuple(dict.fromkeys(trees))
    if missing := [tree for tree in trees if not is_folder(tree)]:
        raise UsageProblem(f"cards from {shown(missing[0])}: there is no such folder", "--cards-from DIR")
    shipped: dict[str, tuple[Path, list[CardItem]]] = {}
    for plugin, item in plugins.collect("madlite_cards", trees=trees):
        shipped.setdefault(plugin.name, (plugin.folder or workspace, []))[1].append(item)
    read = {item.tree for _, items in shipped.values() for item in items if isinstance(item, TreeCards)}
    if unknown := [tree for tree in trees if tree not in read]:
        broken = "".join(f"; {problem.where}: {problem.what}" for problem in plugins.problems)
        raise UsageProblem(
            f"cards from {shown(unknown[0])}: no plugin makes cards of this folder{broken}",
            "name the folder itself that a plugin reads, such as a clone of https://github.com/AMD-AGI/Primus",
        )
    wanted = tag_names(tags) if tags is not None else None
    return load_catalog(workspace, bundled_models(home()), [(name, *rest) for name, rest in shipped.items()], wanted)


def load(no_plugins: bool = False) -> Plugins:
    """Load the plugins, and the user's readers of logs unless `no_plugins`.

    Raises:
        UsageProblem: a file of readers cannot be used.
    """
    return load_with_readers(os.environ, only_built_in=no_plugins)


def print_problems(problems: Sequence[Problem]) -> None:
    """Print each problem as a warning, once."""
    warn(*(f"{problem.where}: {problem.what}" for problem in dict.fromkeys(problems)))


def warn(*texts: str) -> None:
    """Print warnings on stderr, secrets masked."""
    for text in texts:
        echo_on(f"warning: {mask(text)}", err=True)


def copy_model_dir(plugins: Plugins, tags: Sequence[str] | None, trees: Sequence[Path] = ()) -> None:
    """Copy the checkout that $MODEL_DIR names into the working folder, once each tag has a card; None checks no tags.

    To be called last of what can refuse a command line, and before anything of the working folder is read.

    Raises:
        MadliteError: MODEL_DIR names no folder, or there is no tag, or one that selects no card; nothing was copied.
    """
    here = Path.cwd()
    source = find_model_dir(os.environ, here)
    if source is None:
        return
    from madlite.plan.inputs import RUNS
    from madlite.run import model_dir

    if tags is not None:
        _check_tags(plugins, tags, source, here, trees)
    model_dir.copy_model_dir(source, here, RUNS)


def _check_tags(plugins: Plugins, values: Sequence[str], source: Path, here: Path, trees: Sequence[Path]) -> None:
    """Refuse a tag that has a card neither where files come from nor where they go."""
    tags = split_tags(values)
    catalog = load_cards(plugins, source, trees, tags)
    left = unmatched(catalog, tags)
    if not tags or (left and unmatched(load_cards(plugins, here, trees, left), left)):
        select(catalog, tags)


# options of the command line that `Options` has under the same name
_SAME_NAME = (
    *("image", "keep_alive", "keep_model_dir", "skip_model_run", "clean_docker_cache"),
    *("strict_header", "ignore_deprecated", "disable_skip_gpu_arch", "lint"),
)


def make_options(params: dict[str, Any], touch: bool = False) -> Options:
    """Return the options of a command line; `touch` as in `find_workspace`.

    Raises:
        UsageProblem: one of them does not make sense, or names a file that is not there.
    """
    from madlite.jobs.allocated import allocated

    workspace, output = find_workspace(touch), Path.cwd() / params["output"]
    recipe = params.get("recipe_file")
    # a study over numbers of nodes has its own
    context = None if params.get("node_counts") else partial(context_of, params)
    runtime, nodes, note = allocated(params["runtime"], params.get("nodes"), os.environ, context)
    if nodes and params.get("parallel") is not None:
        option = spelled("parallel")
        what = f"{option} {params['parallel'] or 'auto'} on the nodes of an allocation: each run has all of their GPUs"
        hint = f"leave {option} out: one run after another; --cluster NAME gives each a job of its own"
        raise UsageProblem(what, hint)
    return Options(
        workspace=workspace,
        output=output,
        output_target=Path(os.path.realpath(output)),
        timeout_s=None if params["timeout"] == -1 else params["timeout"],
        named=(*(recipe.named if recipe is not None else ()), *named_values(params)),
        sets=tuple(map(_key_value, params["sets"])),
        live_output=bool(params.get("live_output")),
        rows=not params.get("no_rows"),
        result_file=params.get("plan_file") is not None,
        side_files=_has_side_files(params, workspace),
        columns=tuple(dict.fromkeys((*(params.get("add_column") or ()), *(("configs",) if contract() == 2 else ())))),
        environ=dict(os.environ),
        python=sys.executable,
        user=(os.getuid(), os.getgid()),
        data_file=_named_file("--data-config", params.get("data_config"), workspace) or workspace / "data.json",
        tools_file=_named_file("--tools-config", params.get("tools_config"), workspace, _TOOLS) or workspace / _TOOLS,
        snapshot=bool(params.get("sys_env_details")),
        mirror=str(params.get("force_mirror_local") or ""),
        registry=params.get("registry") or "",
        contract=contract(),
        command=command_words(),
        backend=_backend(params["backend"], recipe),
        runtime=runtime,
        runtime_origin=ASKED if params["runtime"] else "the allocation",
        nodes=nodes,
        allocation=note,
        **{name: params[name] for name in _SAME_NAME},
    )


def _has_side_files(params: dict[str, Any], workspace: Path) -> bool:
    """Return whether MAD's tooling is at work here, which reads what lies beside perf.csv."""
    from madlite.perfcsv.side_files import has_readers  # with much of what only runs need

    of_mad = contract() or params.get("manifest_file") or params.get("summary_output") or os.environ.get("MODEL_DIR")
    return bool(of_mad) or has_readers(workspace)


def command_words() -> tuple[str, ...]:
    """Return the words of this command line from the command's name on, secrets masked.

    None where the command was called by other means.
    """
    context = click.get_current_context(silent=True)
    words = context.find_object(tuple) if context is not None else None
    if context is None or not words:
        return ()
    name = context.find_root().invoked_subcommand
    return tuple(mask(str(word)) for word in words[words.index(name) if name in words else 0 :])


_TOOLS = "scripts/common/tools.json"
_CONTEXT = "context"  # among the options of a command, once it was read


def _backend(named: str, recipe: RecipeFile | None) -> str:
    """Return the backend of a command: the settings of a recipe file are of one."""
    if recipe is None or named == recipe.backend:
        return named
    if named:
        what = f"{recipe.origin} is for backend '{recipe.backend}', not --backend {named}"
        raise UsageProblem(what, "leave one of them out")
    return recipe.backend


def _named_file(option: str, named: Path | None, workspace: Path, usual: str = "") -> Path | None:
    """Return a file that an option names, or where MODEL_DIR copies it; None where it names none.

    So it is where it names the `usual` one, which need not be there: madengine 1's default, given explicitly.
    """
    if named is None:
        return None
    here = Path.cwd()
    if (source := find_model_dir(os.environ, here)) is not None:
        from madlite.run.model_dir import is_copied

        if is_copied(source, named):
            return workspace / named
    if not exists(here / named):
        if os.path.normpath(named) == usual:
            return None
        raise UsageProblem(f"{option} {named}: there is no such file", f"in {here}")
    return here / named


def make_context(params: dict[str, Any]) -> Context:
    """Return the context of a command line, after naming what of it has no effect."""
    context = context_of(params)
    warn(*unused_keys(context))
    return context


def context_of(params: dict[str, Any]) -> Context:
    """Return the context of a command line, cached: its file may be a pipe, which can be read once."""
    if _CONTEXT not in params:
        own = {"docker_gpus": (GPUS_OPTION, params["gpus"]), "gpu_vendor": ("--gpu-vendor", params["gpu_vendor"])}
        named = {key: (option, value) for key, (option, value) in own.items() if value}
        params[_CONTEXT] = read_context(params["additional_context_file"], params["additional_context"], named)
    context: Context = params[_CONTEXT]
    return context


def put_under_context(params: dict[str, Any], values: Mapping[str, Json], origin: str) -> None:
    """Put values below the context of a command line, in the place of what a platform has translated of it.

    Raises:
        UsageProblem: one of them has the wrong type.
    """
    params[_CONTEXT] = context_on(values, origin, context_of(params), TRANSLATED)


def select_requests(
    plugins: Plugins, tags: Sequence[str], workspace: Path, trees: Sequence[Path] = ()
) -> tuple[Request, ...]:
    """Return the cards that the tags select, each once, after naming what of the catalogue is broken.

    `trees` as in `load_cards`.  What is odd about the cards themselves is named too.
    """
    wanted = split_tags(tags)
    catalog = load_cards(plugins, workspace, trees, wanted)
    print_problems(catalog.problems)
    requests, repeated = without_repeats(select(catalog, wanted))
    warn(*repeated, *odd_fields(request.card for request in requests))
    return requests


def find_machine(context: Context, pretended: str, origin: str = "--machine") -> Machine:
    """Return this machine, as detected and as the context overrides it, or `pretended`, which `origin` names."""
    from madlite.machine.detect import detect_machine
    from madlite.machine.host import Host

    overrides = {
        key: context.values[key] for key in ("gpu_vendor", "gpu_renderDs", *MACHINE_KEYS) if key in context.values
    }
    if pretended:  # the context's GPU keys describe another machine
        overrides = {key: overrides[key] for key in ("numa_balancing",) if key in overrides} | _pretend(pretended)
    machine = detect_machine(overrides, host=Host(path=os.environ.get("PATH", ""), env=dict(os.environ)))
    whole = origin if pretended else ""
    sources = {fact: _typed_source(found, context, whole) for fact, found in machine.sources.items()}
    return replace(machine, sources=sources)


def _typed_source(origin: str, context: Context, whole: str) -> str:
    """Return a fact's origin by what the user typed, `context file F: KEY`; `whole` of a pretended machine."""
    key = origin.removeprefix("override ")
    if whole and (key in ("device", "n_gpus", "gpu_vendor") or origin.startswith("usual for ")):
        return whole
    typed = context.origins.get(key, "") if key != origin else ""
    return origin if not typed else typed if typed == "--gpu-vendor" else f"{typed}: {key}"


def _pretend(text: str) -> dict[str, Any]:
    """Return what `--machine 8xMI300X` stands for; `8xAMD` is a machine with GPUs of which the vendor alone is known.

    Raises:
        UsageProblem: it is no count and GPU, or a GPU that nobody knows.
    """
    from madlite.machine.products import PRODUCTS, find_product, is_vendor

    found = re.fullmatch(r"([1-9][0-9]{0,3})[xX](.+)", text, re.ASCII)
    if not found:
        raise UsageProblem(f"--machine {text!r} is no machine", "write it like 8xMI300X or 2xH200")
    count, device = found.groups()
    product = find_product(device)
    if is_vendor(device.upper()):
        return {"gpu_vendor": device.upper(), "device": device.upper(), "n_gpus": int(count)}
    if product is None:
        read = ", ".join(product.device for product in PRODUCTS)
        raise UsageProblem(f"--machine {text!r}: unknown GPU '{device}'", f"known: {read}")
    return {"device": product.device, "n_gpus": int(count)}


def make_runtimes(
    plugins: Plugins,
    context: Context = Context(),  # noqa: B008 - frozen
    environ: Mapping[str, str] | None = None,
    names: Collection[str] = (),
) -> dict[str, Runtime]:
    """Return every runtime by name, for this process's environment unless another is given.

    A plugin cannot replace one of madlite's own.  `context` may describe a runtime's machines, `names` are those that
    runs can be on, where that is known.
    """
    from madlite.platforms.registry import builtin_runtimes

    own = dict(os.environ) if environ is None else environ
    return {**plugins.runtimes(), **builtin_runtimes(own, context, names)}


def settings_of_pods(context: Context) -> KubernetesSettings | None:
    """Return what the context says of runs' pods, after naming what of it has no effect; None for nothing.

    Raises:
        UsageProblem: it cannot be used.
    """
    from madlite.platforms import registry

    settings, notes = registry.settings_of_pods(context) or (None, ())
    warn(*notes)
    return settings


def _key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageProblem(f"--set {text!r} has no value", "--set key=value")
    return key.strip(), value

"""Every hook of madlite, in the order of a run.

::

    start     madlite_backends()            which frameworks can be run
              madlite_cards(trees)          model cards that plugins ship, or make of folders
              madlite_runtimes()            places to run, beyond docker and host
              madlite_failure_rules()       log pattern → cause and hint
              madlite_references()          published numbers
              madlite_commands(group)       extra commands of the command line
              madlite_exporters()           what `madlite export` can write to
    plan      madlite_adjust_plan(plan, options)     a changed plan
              madlite_checks(plan)                   findings that may keep it from starting
    run       madlite_run_started(plan)
              madlite_run_step(plan, step)           once per training step
              madlite_run_finished(plan, result)

Hooks of a run are called in the run's thread: of runs that go on at once, at the same time.

A plugin is a module or an object with functions of these names, marked by `madlite.hookimpl` and named in the entry
point group `madlite`.  A hook may take fewer arguments than its specification lists, never others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    import click

    from madlite.model import (
        Backend,
        CardItem,
        Exporter,
        FailureRule,
        Finding,
        Reference,
        Result,
        RunPlan,
        Runtime,
        Step,
    )

PROJECT = "madlite"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Hooks:
    """The specifications; a class so that their documentation reads as one page."""

    @hookspec
    def madlite_backends(self) -> Iterable[Backend]:  # type: ignore[empty-body]
        """Return the backends this plugin brings.

        When: once per command that needs a card's backend.  Two backends of one name are an error that names both
        distributions.

        Example::

            @hookimpl
            def madlite_backends():
                return [Tiny()]
        """

    @hookspec
    def madlite_cards(self, trees: Sequence[Path]) -> Iterable[CardItem]:  # type: ignore[empty-body]
        """Return model cards: those this plugin ships, and those of the folders that it can make cards of.

        When: at discovery.  A shipped card is a mapping in MAD's schema, its paths relative to the plugin module's
        folder, or stands in a models.json whose path is returned.  Of each folder in `trees` that the plugin knows it
        returns a `TreeCards`; a folder that no plugin knows is the user's mistake.  A `Problem` names what was left
        out.  A name `folder/name` can be selected by its folder and by its last part too.

        Parameters: `trees`, the folders of `--cards-from`, none where the option is not given.

        Example::

            @hookimpl
            def madlite_cards(trees):
                yield Path(__file__).with_name("models.json")
                for tree in trees:
                    if (tree / "tiny.ini").is_file():
                        yield TreeCards(tree=tree, found=({"name": "tiny/small", "backend": "tiny"},))
        """

    @hookspec
    def madlite_runtimes(self) -> Iterable[Runtime]:  # type: ignore[empty-body]
        """Return runtimes beyond docker and host.

        When: once, before the first plan is made.  A card or `--runtime` names one by its `name`.

        Example::

            @hookimpl
            def madlite_runtimes():
                return [Enroot()]
        """

    @hookspec
    def madlite_failure_rules(self) -> Iterable[FailureRule]:  # type: ignore[empty-body]
        r"""Return patterns of log lines that explain a failure.

        When: before a run and where a log is read. Of the lines that match, the first cause becomes a failure's
        evidence (docs/failures.md); `madlite.read_failure_rules` reads rules from a TOML file.

        Example::

            @hookimpl
            def madlite_failure_rules():
                return [FailureRule(pattern=r"No space left on device", cause="disk_full", hint="free some space")]
        """

    @hookspec
    def madlite_references(self) -> Iterable[Reference]:  # type: ignore[empty-body]
        """Return published numbers that results can be compared with.

        When: by `madlite doctor --plugins` and `madlite compare published --list`, and where a success is shown whose
        model, precision, sequence and GPU may have one.  One that names no model, device, metric or source, or whose
        value is no figure above 0, is told as the plugin's problem and left out.

        Return: any number of `Reference`; `madlite.read_references` reads them from a TOML file (docs/references.md).

        Example::

            @hookimpl
            def madlite_references():
                return read_references(Path(__file__).with_name("references.toml"))
        """

    @hookspec
    def madlite_commands(self, group: click.Group) -> None:
        """Add commands to madlite's command line.

        When: at start, only for plugins that are not part of madlite itself.

        Parameters: `group`, the click group to call `add_command` or `command` on.

        Example::

            @hookimpl
            def madlite_commands(group):
                group.add_command(upload)
        """

    @hookspec
    def madlite_exporters(self) -> Iterable[Exporter]:  # type: ignore[empty-body]
        """Return what writes results to another program: `madlite export --to NAME`.

        When: by `madlite export`, and by `madlite doctor --plugins`; madlite's own formats come this way.  Of two of
        one name the first is used, and the other told as its plugin's problem.

        Return: any number of objects with the members of `madlite.Exporter`, or click commands of the class
        `madlite.ExportCommand`, which have arguments and options of their own.

        Example::

            class Board:
                name = "board"
                summary = "the lab's result board; -o URL"
                options = ("team",)

                def write(self, rows, target, options):
                    known = fetch_keys(target)
                    fresh = [row for row in rows if row.key not in known]
                    post(target, fresh, team=options.values.get("team", ""))
                    return Exported(new=len(fresh), target=target)

            @hookimpl
            def madlite_exporters():
                return [Board()]
        """

    @hookspec
    def madlite_adjust_plan(self, plan: RunPlan, options: Mapping[str, str]) -> RunPlan | None:
        """Return a changed copy of the plan, or None to leave it.

        When: after the plan is made and before it is checked and rendered; plugins are asked one after another, each
        seeing the plan as the one before left it.  The plugin's name becomes the origin of every field it changed.

        Parameters: `plan`; `options`, the `--set` values as text.

        Example::

            @hookimpl
            def madlite_adjust_plan(plan):
                return msgspec.structs.replace(plan, env={**plan.env, "NCCL_DEBUG": "INFO"})
        """

    @hookspec
    def madlite_checks(self, plan: RunPlan) -> Iterable[Finding]:  # type: ignore[empty-body]
        """Return what speaks against starting this plan.

        When: before the start, also for `explain` and `--dry-run`; a fatal finding refuses the run.

        `keys` are those of the plan that a finding is about: where the command set one of them a fatal finding refuses
        it, else the card gets a FAILURE row.

        Parameters: `plan`.

        Example::

            @hookimpl
            def madlite_checks(plan):
                if plan.place.nodes > 1:
                    yield Finding(message="this cluster has one node", fatal=True, keys=("nnodes",))
        """

    @hookspec
    def madlite_run_started(self, plan: RunPlan) -> None:
        """Note that a run starts; an exception is reported and changes nothing.

        When: after the checks, before an image is built or pulled.

        Parameters: `plan`.

        Example::

            @hookimpl
            def madlite_run_started(plan):
                post(f"{plan.card.name} started")
        """

    @hookspec
    def madlite_run_step(self, plan: RunPlan, step: Step) -> None:
        """Note one training step; called while the log streams, so it must be quick.

        When: for every step of every rank as it is read; an exception is reported once and the plugin gets no more
        steps of that run.

        Parameters: `plan`; `step`, its numbers with their units.

        Example::

            @hookimpl
            def madlite_run_step(plan, step):
                gauge.set(step.values[Quantity.TOKENS_PER_S_PER_GPU])
        """

    @hookspec
    def madlite_run_finished(self, plan: RunPlan, result: Result) -> None:
        """Note that a run ended, after its row is written; an exception is reported and never changes the verdict.

        When: once per run, whatever its status.  A study's warm-up (`plan.study.warm_up`) is no result, nor is one with
        a `result.attempt.next`: an attempt that another one replaced.

        Parameters: `plan`; `result`, the verdict with its metrics.

        Example::

            @hookimpl
            def madlite_run_finished(plan, result):
                post(f"{plan.card.name}: {result.status.value}")
        """

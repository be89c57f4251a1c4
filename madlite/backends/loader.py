"""Loads plugins one by one, and calls their hooks so that a broken one is named once and stops nothing else."""

from __future__ import annotations

import inspect
import logging
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from madlite.cancellation import Interrupted
from madlite.errors import MadliteError, PluginError, RuntimeProblem, did_you_mean
from madlite.hookspecs import PROJECT, Hooks
from madlite.model import (
    Backend,
    Cause,
    Exporter,
    FailureRule,
    Finding,
    Problem,
    Reference,
    RunPlan,
    Runtime,
    Traits,
    Value,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


OURS = "madlite"
SWITCH = "MADLITE_DISABLE_PLUGINS"


class Plugin(Value, frozen=True):
    """One loaded plugin: its name, the distribution it came with, and where its files are."""

    name: str
    distribution: str
    version: str
    hooks: tuple[str, ...]
    folder: Path | None
    built_in: bool


class Plugins:
    """The loaded plugins of one process; `problems` grows as broken ones are met."""

    def __init__(self) -> None:
        self.manager = pluggy.PluginManager(PROJECT)
        self.manager.add_hookspecs(Hooks)
        self.loaded: dict[str, Plugin] = {}
        self.problems: list[Problem] = []
        self._broken: set[tuple[str, str]] = set()

    def register(self, name: str, module: object, distribution: str, version: str, *, built_in: bool = False) -> None:
        """Take a plugin in; what is wrong with it is noted, not raised."""
        for collected in ("_backends", "_rules"):
            self.__dict__.pop(collected, None)
        if self.manager.has_plugin(name):
            self.problems.append(Problem(where=f"plugin {name}", what=f"{distribution} brings a second one; left out"))
            return
        try:
            self.manager.register(module, name=name)
        except (pluggy.PluginValidationError, ValueError) as error:
            self.manager.unregister(name=name)
            self._note(name, distribution, f"left out: {_first_line(error)}")
            return
        for misspelt in _unknown_hooks(module):
            close = did_you_mean(misspelt, _spec_names(), most=1) or "docs/plugins.md lists them"
            self._note(name, distribution, f"'{misspelt}' is no hook of madlite; {close}")
        self.loaded[name] = Plugin(
            name=name,
            distribution=distribution,
            version=version,
            hooks=tuple(sorted(hook for hook in _spec_names() if callable(getattr(module, hook, None)))),
            folder=_folder(module),
            built_in=built_in,
        )

    def collect(self, hook: str, **arguments: object) -> Iterator[tuple[Plugin, Any]]:
        """Yield each plugin's items of a collecting hook."""
        for name in list(self.loaded):
            for items in self._call(name, hook, arguments):
                try:
                    listed = list(items)
                except Exception as error:  # noqa: BLE001 - a generator hook fails only here
                    self._break(name, hook, error)
                    continue
                yield from ((self.loaded[name], item) for item in listed)

    def notify(self, hook: str, **arguments: object) -> None:
        """Tell every plugin; one that raises is noted and not told again."""
        for name in list(self.loaded):
            self._call(name, hook, arguments)

    def adjust(self, plan: RunPlan, options: Mapping[str, str]) -> RunPlan:
        """Return the plan as the plugins, one after another, want it; changed fields get the plugin as origin."""
        for name in list(self.loaded):
            for changed in self._call(name, "madlite_adjust_plan", {"plan": plan, "options": options}):
                if isinstance(changed, RunPlan):
                    plan = _with_origin(plan, changed, f"plugin {name}")
                else:
                    what = f"madlite_adjust_plan returned {type(changed).__name__}, not a RunPlan; ignored"
                    self._note(name, self.loaded[name].distribution, what)
        return plan

    def backends(self) -> dict[str, tuple[Backend, Plugin]]:
        """Return the backends by name.

        Raises:
            PluginError: two distributions bring a backend of one name.
        """
        return dict(self._backends)

    @cached_property
    def _backends(self) -> dict[str, tuple[Backend, Plugin]]:
        return self._named("madlite_backends", "backend", _BACKEND_MEMBERS)

    def _named(
        self,
        hook: str,
        kind: str,
        members: Iterable[str],
        of: type = Callable,  # type: ignore[assignment]
    ) -> dict[str, tuple[Any, Plugin]]:
        """Return the items of a hook by name, which have members of a type; the others, and second ones, are noted.

        Raises:
            PluginError: two distributions bring a backend of one name.
        """
        found: dict[str, tuple[Any, Plugin]] = {}
        for plugin, item in self.collect(hook):
            name = getattr(item, "name", "")
            lacks = [] if isinstance(name, str) and name else ["a name"]
            lacks += [member for member in members if not isinstance(getattr(item, member, None), of)]
            if lacks:
                self._note(plugin.name, plugin.distribution, f"{kind} {item!r} lacks {', '.join(lacks)}; left out")
            elif name not in found:
                found[name] = (item, plugin)
            elif kind == "backend":  # by which cards and records name what they train with
                both = f"{found[name][1].distribution} and {plugin.distribution}"
                hint = f"rename or uninstall one, or {SWITCH}={plugin.name}"
                raise PluginError(f"two plugins bring a backend named '{name}': {both}", hint)
            else:
                what = f"{kind} {name}: {found[name][1].distribution} brings one; left out"
                self._note(plugin.name, plugin.distribution, what)
        return found

    def runtimes(self) -> dict[str, Runtime]:
        """Return the runtimes that plugins bring, by name."""
        return {name: runtime for name, (runtime, _) in self.runtimes_of_plugins().items()}

    def runtimes_of_plugins(self) -> dict[str, tuple[Runtime, Plugin]]:
        """Return the runtimes that plugins bring, by name, each with its plugin."""
        return self._named("madlite_runtimes", "runtime", ("traits",), Traits)

    def exporters(self) -> dict[str, tuple[Exporter, Plugin]]:
        """Return what writes results to other programs, by name, each with its plugin."""
        return self._named("madlite_exporters", "exporter", ("write",))

    def failure_rules(self) -> tuple[FailureRule, ...]:
        """Return the rules that plugins bring, without those whose pattern cannot be used."""
        return self._rules

    @cached_property
    def _rules(self) -> tuple[FailureRule, ...]:
        rules = []
        for plugin, rule in self.collect("madlite_failure_rules"):
            try:
                re.compile(rule.pattern)
            except (AttributeError, TypeError, re.error) as error:
                self._note(plugin.name, plugin.distribution, f"failure rule {rule!r} cannot be used: {error}")
            else:
                rules.append(rule)
        return tuple(rules)

    def references(self) -> dict[str, tuple[Reference, ...]]:
        """Return the published numbers of each plugin by its name, without what cannot be compared with."""
        found: dict[str, tuple[Reference, ...]] = {}
        for plugin, item in self.collect("madlite_references"):
            if why := _unfit_reference(item):
                self._note(plugin.name, plugin.distribution, f"{why}: {item!r}")
            else:
                found[plugin.name] = (*found.get(plugin.name, ()), item)
        return found

    def checks(self, plan: RunPlan, backends: Iterable[Backend]) -> tuple[Finding, ...]:
        """Return what backends and plugins find in a plan; what is no Finding is noted and left out."""
        answers = [
            (f"backend {backend.name}", self.query(backend, "check", plan, otherwise=()) or ()) for backend in backends
        ]
        found = [(where, item) for where, items in answers for item in items]
        found += [(f"plugin {plugin.name}", item) for plugin, item in self.collect("madlite_checks", plan=plan)]
        for where, item in found:
            if not isinstance(item, Finding):
                self._once(Problem(where=where, what=f"check answered {item!r}, which is no Finding"))
        return tuple(item for _, item in found if isinstance(item, Finding))

    def query(self, backend: Backend, member: str, *arguments: object, otherwise: Any) -> Any:
        """Return what a member of a backend answers, a generator's items as a list.

        One that raises is noted once, and `otherwise` is returned.
        """
        try:
            answer = getattr(backend, member)(*arguments)
            return list(answer) if isinstance(answer, Iterator) else answer
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the border to foreign code
            self._once(Problem(where=f"backend {backend.name}", what=f"{member} failed: {raised(error)}"))
            return otherwise

    def _call(self, name: str, hook: str, arguments: Mapping[str, object]) -> list[Any]:
        if hook not in self.loaded[name].hooks or (name, hook) in self._broken:
            return []
        try:
            others = [plugin for key, plugin in self.manager.list_name_plugin() if key != name]
            answers: list[Any] = self.manager.subset_hook_caller(hook, remove_plugins=others)(**arguments)
            return answers
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the border to foreign code
            self._break(name, hook, error)
            return []

    def _break(self, name: str, hook: str, error: BaseException) -> None:
        self._broken.add((name, hook))
        self._note(name, self.loaded[name].distribution, f"{hook} failed: {raised(error)}")

    def _once(self, problem: Problem) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def _note(self, name: str, distribution: str, what: str) -> None:
        origin = f" ({distribution})" if distribution and distribution != name else ""
        self._once(Problem(where=f"plugin {name}{origin}", what=what))


_BACKEND_MEMBERS = ("claim", "expand", "check", "assets", "detect", "reader")


def load_plugins(disabled: str = "", *, only_built_in: bool = False) -> Plugins:
    """Load madlite's own plugins and, unless switched off, those of the entry-point group `madlite`.

    `disabled` is MADLITE_DISABLE_PLUGINS: `1` or `all` for every third-party one, else names of plugins or of the
    distributions they came with, separated by commas.
    """
    plugins = Plugins()
    off = {name.strip() for name in disabled.split(",") if name.strip()}
    none = only_built_in or bool(off & {"1", "all", "true"})
    for entry, distribution, version in _entry_points():
        ours = distribution == OURS
        if (not ours and (none or off & {entry.name, distribution})) or (ours and entry.name in off):
            continue
        try:
            module = entry.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the border to foreign code
            what = f"cannot be loaded: {raised(error)}"
            plugins.problems.append(Problem(where=f"plugin {entry.name} ({distribution})", what=what))
            continue
        plugins.register(entry.name, module, distribution, version, built_in=ours)
    return plugins


def load_with_readers(environ: Mapping[str, str], *, only_built_in: bool = False) -> Plugins:
    """Load the plugins, and unless `only_built_in` the user's readers of logs, as the environment has both.

    Raises:
        UsageProblem: a file of readers cannot be used.
    """
    plugins = load_plugins(environ.get("MADLITE_DISABLE_PLUGINS", ""), only_built_in=only_built_in)
    for path in () if only_built_in else _readers_files(environ):
        from madlite.backends.log_formats import ReadersFile

        plugins.register(str(path), ReadersFile(path), str(path), "")
    return plugins


def _readers_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the user's files of readers: the working folder's, and that of all of their work."""
    from madlite.files import is_file

    home = environ.get("HOME", "")
    config = environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    for path in (Path("readers.toml"), *((Path(config, "madlite", "readers.toml"),) if config else ())):
        if is_file(path):
            yield path


def third_party_plugins() -> tuple[str, ...]:
    """Return the names of installed plugins that are not madlite's own, without loading any."""
    return tuple(entry.name for entry, distribution, _ in _entry_points() if distribution != OURS)


def _entry_points() -> Iterable[tuple[EntryPoint, str, str]]:
    """Return the group's entry points once each, with the distribution they came with and its version; ours first."""
    from importlib.metadata import entry_points

    origins: dict[int, tuple[str, str]] = {}  # each question for a name or a version reads the whole metadata again
    seen: dict[tuple[str, str, str], tuple[EntryPoint, str, str]] = {}
    for entry in entry_points(group=PROJECT):
        dist = entry.dist
        if id(dist) not in origins:
            origins[id(dist)] = (dist.name, dist.version) if dist else ("unknown", "")
        distribution, version = origins[id(dist)]
        seen.setdefault((distribution, entry.name, entry.value), (entry, distribution, version))
    return sorted(seen.values(), key=lambda item: (item[1] != OURS, item[0].name))


def _with_origin(before: RunPlan, after: RunPlan, origin: str) -> RunPlan:
    from msgspec.structs import replace

    changed = {
        name: origin
        for name in RunPlan.__struct_fields__
        if name != "origins" and getattr(before, name) != getattr(after, name)
    }
    if before.env != after.env:
        changed |= {f"env.{name}": origin for name in after.env if before.env.get(name) != after.env[name]}
    return replace(after, origins={**before.origins, **after.origins, **changed})


def _spec_names() -> tuple[str, ...]:
    return tuple(name for name in vars(Hooks) if name.startswith("madlite_"))


def _unknown_hooks(module: object) -> list[str]:
    marked = [
        name for name in dir(module) if name.startswith("madlite_") and hasattr(getattr(module, name), "madlite_impl")
    ]
    return [name for name in marked if name not in _spec_names()]


def _folder(module: object) -> Path | None:
    file = getattr(module, "__file__", None) if isinstance(module, ModuleType) else None
    if file is None and not isinstance(module, ModuleType):
        found = inspect.getmodule(type(module))
        file = getattr(found, "__file__", None)
    return Path(file).parent if file else None


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:4]) if lines else type(error).__name__


def _unfit_reference(answer: object) -> str:
    """Return why an answer cannot be compared with; "" where it can."""
    from madlite.references import flaw_of

    if not isinstance(answer, Reference):
        return "madlite_references answered what is no Reference"
    flaw = flaw_of(answer)
    return f"a reference cannot be used: {flaw}" if flaw else ""


def raised(error: BaseException) -> str:
    """Format an exception of foreign code in one line: type, text, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    place = f" ({last.filename}:{last.lineno})" if last else ""
    return f"{type(error).__name__}: {_first_line(error)}{place}"


# The border to a runtime, which may be a plugin's: what it raises and what it answers.


_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def check_type(value: object, kind: type[_T], what: str, runtime: Runtime) -> _T:
    """Return what a runtime answered.

    Raises:
        RuntimeProblem: it is something else, as a plugin's may be.
    """
    if isinstance(value, kind):
        return value
    text = f"runtime '{runtime.name}' failed: {what} answered {value!r}, not a madlite.{kind.__name__}"
    raise RuntimeProblem(text, cause=Cause.INTERNAL, keys=())


@contextmanager
def guard_plugin(runtime: Runtime) -> Iterator[None]:
    """Turn what a runtime raises beyond its contract into its failure: it may be a plugin's."""
    try:
        yield
    except (MadliteError, Interrupted):
        raise
    except Exception as error:
        _log.debug("runtime %s", runtime.name, exc_info=True)
        what = f"runtime '{runtime.name}' failed: {type(error).__name__}: {error}"
        raise RuntimeProblem(what, cause=Cause.INTERNAL, keys=()) from error


def why_unavailable(runtime: Runtime) -> Problem | None:
    """Return why a runtime cannot be used now; None where it can."""
    try:
        return runtime.available()
    except Exception as error:  # noqa: BLE001 - the border to a plugin's runtime
        return Problem(where=runtime.name, what=f"runtime '{runtime.name}' failed: {type(error).__name__}: {error}")

"""Fetch what `resolve` found missing, one after another; a failure does not stop the rest.

Data that a run's own preparation makes is made by that run's script, which exits before the training.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from madlite.assets.hub import Access, Listing, Refused, RepoDownload, list_files, missing_bytes
from madlite.assets.paths import (
    CACHES,
    DATA,
    Demand,
    Stopped,
    cache_environ,
    data_folder,
    data_inside,
    find_asset,
    find_full_disks,
    find_prepared,
    find_token,
    given_env,
    hub_cache,
    hub_endpoint,
    is_offline,
    locked,
    needed_assets,
    repo_folder,
    repo_type,
    save_prepared_record,
    scan_cache,
    settings,
    size_of,
    stored_token,
)
from madlite.assets.web import ProgressCallback, fetch_file, look_up, part_of
from madlite.backends.loader import Plugins
from madlite.cancellation import Interrupted, check, interruptible
from madlite.errors import CheckFailed, ExitCode, MadliteError, RuntimeProblem
from madlite.images.image import is_local
from madlite.model import Action, Asset, Cause, Image, Mount, RunPlan, Say, Status, Value
from madlite.plan.context import Options
from madlite.plan.submission import PlannedRun
from madlite.platforms.docker.container import STAMP, ownership_command
from madlite.run.executor import RunExecutor
from madlite.run.screen import ActivityScreen
from madlite.run.stop import Signals, StopControl
from madlite.store.events import now
from madlite.store.folder import LOG, RunEntry
from madlite.text import duration, size_text

State = Literal["here", "to fetch", "partly here", "to check", "to build", "to make", "by each run", "unknown"]
Fetch = Callable[[Say, ProgressCallback, threading.Event], object]
"""Fetch something, and return where it is; a stop sets the event."""
_DATA_WAY = f"another folder for data: {DATA}=…"


class PrepareOptions(Value, frozen=True):
    """What the user asked of a preparation: `offline` makes no request, `refresh` queries the hub for all."""

    offline: bool = False
    refresh: bool = False
    images: bool = True


class Requirement(Value, frozen=True):
    """One thing that runs need; sizes in bytes, None if unknown, `missing` what is still to come.

    `run` is the first that needs it, `place` where it lies or will lie.  What is not here comes by `fetch`, or is what
    that run's own preparation `makes`; `demand` is the room that it takes.
    """

    what: str
    source: str
    state: State
    place: str
    run: PlannedRun
    size: int | None = None
    missing: int = 0
    fetch: Fetch | None = None
    makes: Asset | None = None
    demand: Demand | None = None
    note: str = ""


class Resolution(Value, frozen=True):
    """Everything that runs need, in the order in which it is fetched, and what is refused of it."""

    requirements: tuple[Requirement, ...]
    refused: tuple[tuple[str, str], ...]
    access: Access
    data: Path

    @property
    def by_runs(self) -> tuple[str, ...]:
        """Return what each run fetches for itself, whatever is prepared."""
        return tuple(requirement.what for requirement in self.requirements if requirement.state == "by each run")

    def check(self) -> None:
        """Refuse to fetch anything where something of it cannot be had, or cannot be put where it belongs.

        Raises:
            CheckFailed: all that is wrong.
        """
        demands = [requirement.demand for requirement in self.requirements if requirement.demand is not None]
        if wrong := self.refused or find_full_disks(demands):
            raise CheckFailed.of_all(wrong)


def resolve(planned: Sequence[PlannedRun], plugins: Plugins, options: Options, wanted: PrepareOptions) -> Resolution:
    """Return what the runs need; the hub is queried for what is not here in full, nothing is fetched."""
    runs = [run for run in planned if run.plan.blocked is None or run.plan.blocked.status is not Status.SKIPPED]
    resolver = _Resolver(runs, options, wanted)
    requirement = [*(resolver.images(runs) if wanted.images else ())]
    requirement += [resolver.resolve(asset, run) for asset, run in _merge_assets(runs, plugins, options)]
    refused = resolver.refused
    blocked = [run.plan.blocked for run in runs if run.plan.blocked is not None]  # an engine or GPUs may come later
    refused += dict.fromkeys((why.reason, why.hint) for why in blocked if why.cause is Cause.PREPARE)
    refused += [
        (
            f"{item.what} is not here in full, and offline nothing is fetched",
            "madlite prepare where there is a network, without --offline and HF_HUB_OFFLINE",
        )
        for item in requirement
        if resolver.is_offline(item.run) and item.state not in ("here", "by each run")
    ]
    access = replace(resolver.access, endpoint=hub_endpoint(options.environ))
    return Resolution(requirements=tuple(requirement), refused=tuple(refused), access=access, data=resolver.data)


class _Resolver:
    """Looks for what runs need one by one, and gathers what is refused."""

    def __init__(self, runs: Sequence[PlannedRun], options: Options, wanted: PrepareOptions) -> None:
        self._environ, self._wanted = options.environ, wanted
        self.data = data_folder(options.environ)
        self.refused = list[tuple[str, str]]()
        given = (find_token(run.plan.env) for run in runs)  # the runs' own, else the one that is stored here
        token = next(filter(None, given), None) or find_token(options.environ)
        self.access = Access(endpoint="", token=token or (None if wanted.offline else stored_token()))

    def is_offline(self, run: PlannedRun) -> bool:
        """Return whether no request may be made for what a run needs: a plan's own variables go before the caller's."""
        return self._wanted.offline or is_offline(settings(run.plan, self._environ))

    def images(self, runs: Iterable[PlannedRun]) -> Iterator[Requirement]:
        """Yield the images of runs in containers, each once."""
        images_seen: list[Image] = []
        for run in runs:
            image = run.plan.image
            if image is not None and run.plan.traits.containerised and image not in images_seen:
                images_seen.append(image)
                yield self._image(image, run)

    def _image(self, image: Image, run: PlannedRun) -> Requirement:
        builds = image.dockerfile is not None and not image.prebuilt
        source, note = str(image.dockerfile) if builds else image.registry or "registry", ""
        requirement = Requirement(
            what=f"image {image.ref}", source=source, state="here", place="container engine", run=run
        )
        try:
            if is_local(image, self._environ) and not (builds and not self.is_offline(run)):
                return requirement
        except RuntimeProblem as problem:
            note = problem.message

        def fetch(say: Say, tell: ProgressCallback, stop: threading.Event) -> str:
            used = run.runtime.prepare(run.plan, say)
            return used.digest or used.ref

        return replace(requirement, state="to build" if builds else "to fetch", fetch=fetch, note=note)

    def resolve(self, asset: Asset, run: PlannedRun) -> Requirement:
        """Return what is known of an asset; the network is queried where it is not here in full."""
        cache, hub = hub_cache(cache_environ(run.plan, self._environ)), asset.source == "hub"
        here = find_asset(asset, cache, self.data)
        access = replace(self.access, endpoint=hub_endpoint(settings(run.plan, self._environ)))
        requirement = Requirement(
            what=f"{asset.kind} {asset.ref if hub else asset.path or asset.ref}",
            source=_source(asset, access),
            state="to fetch",
            place=str(here or (cache if hub else self.data / asset.path)),
            run=run,
            size=asset.size_bytes,
            note=_hidden_cache(run) if hub else "",
        )
        offline = self.is_offline(run)
        if not hub and not asset.path:
            return replace(requirement, state="by each run", place="-", note=asset.hint)
        if here is not None and not (self._wanted.refresh and hub and not offline):
            size = sum(size_of(file) for file in (here, *here.rglob("*")) if file.is_file())
            return replace(requirement, state="here", size=size)
        if asset.source == "made":
            return replace(requirement, state="to make", makes=asset)
        if hub:
            return (self._in_cache if offline else self._on_hub)(requirement, asset, cache, access)
        return requirement if offline else self._on_web(requirement, asset)

    def _on_hub(self, requirement: Requirement, asset: Asset, cache: Path, access: Access) -> Requirement:
        try:
            listing = list_files(asset, access)
        except Refused as refused:
            self.refused.append((refused.message, f"{refused.hint}; {_requested_by(requirement.run)}"))
            return replace(requirement, state="unknown")
        missing = missing_bytes(asset, listing, cache)
        absent = f"it has no {', '.join(listing.absent)}" if listing.absent else ""
        way = f"another folder: HF_HOME=… or {CACHES[0]}=…"
        return replace(
            requirement,
            state="to check" if missing == 0 else "to fetch" if missing == listing.bytes else "partly here",
            size=listing.bytes,
            missing=missing,
            fetch=self._download(asset, listing, cache, access),
            demand=Demand(folder=cache, bytes=missing, way=way),
            note="; ".join(filter(None, (requirement.note, absent))),
        )

    def _in_cache(self, requirement: Requirement, asset: Asset, cache: Path, access: Access) -> Requirement:
        """Return the requirement of a repository that another tool fetched, if the hub cannot be queried."""
        there = scan_cache(asset, cache)
        if there is None:
            return requirement
        listing = Listing(commit=there.commit, files=there.files)
        note = (
            "complete as far as its own files show: another tool fetched it, and the hub's file list was not recorded"
        )
        fetch = self._download(asset, listing, cache, access)
        place = str(repo_folder(asset, cache) / "snapshots" / there.commit)
        return replace(requirement, state="here", size=listing.bytes, fetch=fetch, place=place, note=note)

    def _download(self, asset: Asset, listing: Listing, cache: Path, access: Access) -> Fetch:
        def fetch(say: Say, tell: ProgressCallback, stop: threading.Event) -> Path:
            return RepoDownload(asset, listing, access, cache, tell, stop).run(self.data)

        return fetch

    def _on_web(self, requirement: Requirement, asset: Asset) -> Requirement:
        try:
            source = look_up(asset)
        except RuntimeProblem as problem:
            self.refused.append((problem.message, problem.hint))
            return replace(requirement, state="unknown")

        def fetch(say: Say, tell: ProgressCallback, stop: threading.Event) -> Path:
            return fetch_file(asset, source, self.data, say, tell, stop)

        whole = source.size is not None and size_of(self.data / asset.path) == source.size
        have = (source.size or 0) if whole else max(size_of(part_of(asset, source, self.data)), 0)
        missing = max((source.size or 0) - have, 0)
        return replace(
            requirement,
            state="partly here" if have else "to fetch",
            size=source.size,
            missing=missing,
            fetch=fetch,
            demand=Demand(folder=self.data, bytes=missing, way=_DATA_WAY),
        )


def _merge_assets(runs: Iterable[PlannedRun], plugins: Plugins, options: Options) -> Iterator[tuple[Asset, PlannedRun]]:
    """Yield what the runs need, each once, a repository with all its patterns; what runs make comes last."""
    requirement: dict[tuple[object, ...], tuple[Asset, PlannedRun]] = {}
    for run in runs:
        where = hub_endpoint(settings(run.plan, options.environ)), hub_cache(cache_environ(run.plan, options.environ))
        for asset in needed_assets(run.plan, run.backends, plugins):
            hub = where if asset.source == "hub" else ()
            key = (asset.source, asset.ref, asset.revision, asset.path, repo_type(asset), hub)
            before = requirement.get(key)
            requirement[key] = (_merge_pair(before[0], asset), before[1]) if before else (asset, run)
    order = ("hub", "url", "made")
    yield from sorted(requirement.values(), key=lambda pair: order.index(pair[0].source))


def _merge_pair(item: Asset, other: Asset) -> Asset:
    every = not item.files or not other.files
    return replace(
        item,
        kind="model" if "model" in (item.kind, other.kind) else item.kind,
        gated=item.gated or other.gated,
        files=() if every else tuple(dict.fromkeys((*item.files, *other.files))),
        hint=item.hint or other.hint,
    )


def _hidden_cache(run: PlannedRun) -> str:
    """Return what is reported a container that has a cache of its own."""
    env = given_env(run.plan)
    own = next((name for name in CACHES if run.plan.traits.containerised and env.get(name)), "")
    return f"its container has a cache of its own ({own}={env[own]}), and does not see this one" if own else ""


def _requested_by(run: PlannedRun) -> str:
    backends = ", ".join(dict.fromkeys(backend.name for backend in run.backends))
    return f"asked for by the recipe and settings of {run.plan.card.name} (backend {backends})"


def _source(asset: Asset, access: Access) -> str:
    if asset.source != "hub":
        return "the run's own preparation" if asset.source == "made" else asset.ref
    words = (access.endpoint, f"revision {asset.revision}" if asset.revision else "", "gated" if asset.gated else "")
    return ", ".join(filter(None, words))


ONLY = "MADLITE_PREPARE_ONLY"  # templates/_base.sh.j2 exits where it is set


class Prepared(Value, frozen=True):
    """How it went: names of what failed, of what was not tried, and of what each run fetches; the exit code."""

    failed: tuple[str, ...]
    left: tuple[str, ...]
    exit_code: ExitCode
    by_runs: tuple[str, ...] = ()


def prepare_all(found: Resolution, options: Options, screen: ActivityScreen, mask: Callable[[str], str]) -> Prepared:
    """Fetch everything; after INT, TERM or HUP nothing more is fetched, and what came stays for the next attempt."""
    fetcher = _Fetcher(found, options, screen, mask)
    with fetcher.signals as signals, signals.passing_to(fetcher.stop.request), fetcher.stop.cancellation.scope():
        signals.watch_over(fetcher.fetch_all)
        code = signals.exit_code or (ExitCode.RUN_FAILED if fetcher.failed else ExitCode.OK)
    done = Prepared(failed=(*fetcher.failed,), left=(*fetcher.left,), exit_code=code, by_runs=found.by_runs)
    screen.end(_total(done))
    return done


def _total(done: Prepared) -> list[str]:
    """Return how it went as a whole."""
    rest = "files that came are kept, the next try fetches the rest"
    incomplete = (("failed", done.failed), ("not fetched", done.left))
    each = f", but for what each run fetches: {', '.join(done.by_runs)}" if done.by_runs else ""
    return [f"{word}: {', '.join(names)}; {rest}" for word, names in incomplete if names] or [
        f"everything is here{each}"
    ]


class _Fetcher:
    """Has one requirement after another here; a failure does not stop the rest."""

    def __init__(self, found: Resolution, options: Options, screen: ActivityScreen, mask: Callable[[str], str]) -> None:
        self._requirements, self._data = found.requirements, found.data
        self._options, self._screen, self._mask = options, screen, mask
        self.stop, self.signals = StopControl(), Signals()
        self.failed: list[str] = []
        self.left: list[str] = []

    def fetch_all(self) -> None:
        """Fetch or make what is not here."""
        todo = [item for item in self._requirements if item.fetch is not None or item.makes is not None]
        for position, requirement in enumerate(todo, 1):
            try:
                self.stop.check()
                self._fetch(requirement, f"[{position}/{len(todo)}] {requirement.what} · {requirement.source}")
            except (Interrupted, Stopped):
                self.left.append(requirement.what)

    def _fetch(self, requirement: Requirement, title: str) -> None:
        name, begun_s = requirement.run.plan.id, time.monotonic()
        self._screen.begin([self._mask(title)], requirement.missing or None, name)
        try:
            lines = [f"READY {self._have(requirement)}", f"  took {duration(time.monotonic() - begun_s)}"]
        except MadliteError as problem:
            self.failed.append(requirement.what)
            hint = [f"  hint: {problem.hint}"] if problem.hint else []
            lines = [f"FAILURE {requirement.what}: {problem.message}", *hint]
        self._screen.end([f"      {self._mask(line)}" for line in lines], name)

    def _have(self, requirement: Requirement) -> object:
        """Have it here and say where.

        Raises:
            MadliteError: it cannot be had.
            Interrupted, Stopped: a stop came.
        """
        lock, done, begun_s, name = threading.Lock(), 0, time.monotonic(), requirement.run.plan.id

        def say(text: str) -> None:
            check()  # of a call that was left nothing is told any more
            self._screen.phase(text, name)

        def tell(count: int) -> None:
            nonlocal done
            with lock:
                done += count
                speed = int(done / max(time.monotonic() - begun_s, 0.1))
                text = f"{size_text(max(done, 0))} of {size_text(requirement.missing)}, {size_text(max(speed, 0))}/s"
                self._screen.advance(done, text, name)

        fetch, asked = requirement.fetch, self.stop.cancellation.asked
        try:
            if requirement.makes is not None:
                return self._make(requirement.run, requirement.makes)
            return interruptible(lambda: fetch(say, tell, asked)) if fetch is not None else None
        except OSError as error:
            what = f"{requirement.what} cannot be written: {error.filename or requirement.place}: {error.strerror}"
            raise RuntimeProblem(what, "files that came are kept", cause=Cause.DISK) from error

    def _make(self, run: PlannedRun, asset: Asset) -> Path:
        """Run a plan's preparation, and note what it left in the asset's folder once it ended well.

        Raises:
            RuntimeProblem: it cannot be started, failed or left nothing; what it left stays for the next try.
            OSError: its folder cannot be written.
            Interrupted, Stopped: a stop came.
        """
        folder = self._data / asset.path
        folder.mkdir(parents=True, exist_ok=True)
        waiting = f"waiting for another command that makes {asset.path}"
        with locked(asset, self._data, self.stop.cancellation.asked, lambda: self._screen.phase(waiting, run.plan.id)):
            if find_prepared(asset, self._data) is None:
                plan = _only_prepared(run.plan, asset, folder, self._data, self._options)
                self._execute(replace(run, plan=plan))
                save_prepared_record(asset, self._data, _files(folder, asset))
        return folder

    def _execute(self, run: PlannedRun) -> None:
        """Run a plan's preparation to its end, in a run folder of its own.

        Raises:
            RuntimeProblem: it cannot be started, failed or took too long.
            Interrupted: a stop came.
        """
        # no plugin is told of it
        executor = RunExecutor(run, self._options, Plugins(), self._screen, time.monotonic, None)
        with executor, self.signals.passing_to(executor.stop.request):
            result = executor.run()
            if executor.folder is not None:  # an interrupted preparation is not reported as unfinished
                executor.folder.note(RunEntry(at=now(), cleaned=""))
        self.stop.check()
        if result.exit_code != 0 or result.cause is Cause.TIMEOUT:
            line = f": {result.evidence}" if result.evidence and result.evidence not in result.reason else ""
            what = f"the preparation failed: {result.reason}{line}"
            raise RuntimeProblem(what, f"its log: {run.plan.folder / LOG}", cause=Cause.PREPARE)


def _only_prepared(plan: RunPlan, asset: Asset, folder: Path, data: Path, options: Options) -> RunPlan:
    """Return the plan whose script prepares into the folder and leaves; GPUs that are not here it does without."""
    inside, owner = data_inside(plan, folder, data), options.user if options.user[0] != 0 else None
    mounts = () if not plan.traits.containerised else (Mount(source=str(folder), target=inside),)
    actions = [_plain(action) for action in plan.actions if action.kind in ("pre", "data", "run")]
    if owner is not None and mounts:  # what the container's root wrote into the folder
        command = ownership_command(inside, f"{plan.folder_inside}/{STAMP}", owner)
        actions.append(Action(kind="clean", argv=tuple(command)))
    if plan.machine.pretended:
        place = replace(plan.place, gpus_per_node=0, gpu_ids=())
        plan = replace(plan, devices=(), place=place, machine=replace(plan.machine, vendor="CPU", gpus=()))
    return replace(
        plan,
        env={**plan.env, ONLY: "1", **({asset.env: inside} if asset.env else {})},
        mounts=(*plan.mounts, *mounts),
        actions=tuple(actions),
        timeout_s=float(options.timeout_s) if options.timeout_s else None,
        blocked=None,
        keep_alive=False,
        keep_model_dir=False,
        give_back=owner,
        # nothing is measured
        **{"log_name": "", "until": None, "profile": False, "probe": False},
        **{"telemetry_s": 0.0, "silence_s": 0.0, "start_silence_s": 0.0},
    )


def _plain(action: Action) -> Action:
    """Return a run's action without the tools around it: there is nothing to profile."""
    return replace(action, argv=("bash", "run.sh")) if action.kind == "run" else action


def _files(folder: Path, asset: Asset) -> dict[str, int]:
    files = {str(file.relative_to(folder)): file.stat().st_size for file in sorted(folder.rglob("*")) if file.is_file()}
    if not files:
        what = f"the preparation of {asset.ref} ended well and left nothing in {folder}"
        raise RuntimeProblem(what, cause=Cause.PREPARE)
    return files

"""What planned runs need from elsewhere: what of it is here, what is missing, and what keeps it from being fetched."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from msgspec.structs import replace

from madlite.assets.cache import find_asset, is_dataset, repo_folder, scan_cache, size_of
from madlite.assets.hub import Access, Listing, Refused, RepoDownload, Unknown, list_files, missing_bytes
from madlite.assets.places import (
    CACHES,
    DATA,
    OFFLINE,
    data_folder,
    find_token,
    hub_cache,
    hub_endpoint,
    is_offline,
    is_on,
    stored_token,
)
from madlite.assets.web import Demand, ProgressCallback, fetch_file, find_full_disks, find_unwritable, look_up, part_of
from madlite.backends.loader import Plugins
from madlite.errors import CheckFailed, RuntimeProblem
from madlite.images.image import is_local
from madlite.model import Asset, Backend, Cause, EnvValue, Image, Mount, RunPlan, Say, Status, Value
from madlite.plan.context import Options
from madlite.run.screen import PlannedRun

# A plan uses what `madlite prepare` brought: mounts and variables, so that the run fetches nothing.

ORIGIN = "madlite prepare"
HUB_INSIDE, DATA_INSIDE = "/madlite/hub", "/madlite/data"
_SHARED = "blobs"  # of the cache: what newer versions of huggingface_hub share between repositories
_SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")


def needed_assets(plan: RunPlan, backends: Iterable[Backend], plugins: Plugins) -> tuple[Asset, ...]:
    """Return the assets that a plan's backends require, each once."""
    own = replace(plan, env=given_env(plan))
    answers = (plugins.query(backend, "assets", own, otherwise=()) or () for backend in backends)
    return tuple(dict.fromkeys(asset for found in answers for asset in found))


def given_env(plan: RunPlan) -> dict[str, EnvValue]:
    """Return a plan's environment without what `madlite prepare` gave it."""
    return {name: text for name, text in plan.env.items() if plan.origins.get(f"env.{name}") != ORIGIN}


def settings(plan: RunPlan, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that configure access to a plan's hub: the plan's own over this environment."""
    return {**environ, **{name: str(value) for name, value in given_env(plan).items()}}


def use_prepared(plan: RunPlan, assets: Sequence[Asset], environ: Mapping[str, str]) -> RunPlan:
    """Return the plan with what of its assets is on this machine; unchanged where nothing is.

    The hub's repositories are used once all of them are here; the network is not used once everything is.
    """
    if plan.machine.pretended or not assets:
        return plan
    cache, data = hub_cache(cache_environ(plan, environ)), data_folder(environ)
    here = {asset: find_asset(asset, cache, data) for asset in assets}
    for name in dict.fromkeys(asset.env for asset in assets if asset.env and asset.env not in plan.env):
        places = {asset: here[asset] for asset in assets if asset.env == name}
        if all(places.values()):
            plan = _with_data(plan, name, places, data)
    hub = [asset for asset in assets if asset.source == "hub"]
    if not hub or _has_own(plan, environ):
        return plan
    if all(here[asset] for asset in hub):
        return _with_hub(plan, hub, cache, _missing(here, plan))
    return _with_missing_note(plan if plan.traits.containerised else _with_cached(plan, hub, here), here)


def is_found(plan: RunPlan, asset: Asset) -> bool:
    """Say whether a plan's run finds a repository in the hub's cache, and so needs no token for it."""
    return plan.origins.get(_key(asset)) == ORIGIN


def _key(asset: Asset) -> str:
    return f"hub {repo_folder(asset, Path()).name}"


def _with_cached(plan: RunPlan, hub: Sequence[Asset], here: Mapping[Asset, Path | None]) -> RunPlan:
    """Return a plan of the host, whose run uses the cache anyway, with what is found there."""
    missing = {_key(asset) for asset in hub if here[asset] is None}
    found = {_key(asset): ORIGIN for asset in hub if _key(asset) not in missing}
    return replace(plan, origins={**plan.origins, **found})


def cache_environ(plan: RunPlan, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that locate a plan's hub cache: this environment, and on the host the plan's over it."""
    own = {name: str(value) for name, value in plan.env.items()} if not plan.traits.containerised else {}
    return {**environ, **own}


def data_inside(plan: RunPlan, folder: Path, data: Path) -> str:
    """Return a folder of prepared data as the plan's actions see it."""
    if not plan.traits.containerised:
        return str(folder)
    return str(PurePosixPath(DATA_INSIDE) / folder.relative_to(data).as_posix())


def _has_own(plan: RunPlan, environ: Mapping[str, str]) -> bool:
    """Say whether the user wants the run to use the network, or gave its container a cache."""
    env: Mapping[str, EnvValue] = cache_environ(plan, environ) if not plan.traits.containerised else plan.env
    online = any(env.get(name) and not is_on(env[name]) for name in OFFLINE)
    return online or (plan.traits.containerised and any(plan.env.get(name) for name in CACHES))


def _with_hub(plan: RunPlan, hub: Sequence[Asset], cache: Path, missing: str) -> RunPlan:
    """Return the plan that reads the repositories; a container's cache beside them is its own and can be written to."""
    host = not plan.traits.containerised
    folders = dict.fromkeys(repo_folder(asset, cache) for asset in hub)
    if (cache / _SHARED).is_dir():
        folders[cache / _SHARED] = None
    mounts = tuple(
        Mount(source=str(folder), target=f"{HUB_INSIDE}/{folder.name}", read_only=True) for folder in folders
    )
    switches = {name: "1" for name in _SWITCHES if name not in plan.env and not missing}
    refs = ", ".join(dict.fromkeys(asset.ref for asset in hub))
    note = f"{refs}: prepared in {cache}, {missing or 'nothing is fetched'}"
    env = {"HF_HUB_CACHE": str(cache) if host else HUB_INSIDE, **switches}
    plan = _with_env_and_mounts(plan, env, () if host else mounts, note)
    return replace(plan, origins={**plan.origins, **{_key(asset): ORIGIN for asset in hub}})


def _with_data(plan: RunPlan, name: str, places: Mapping[Asset, Path | None], data: Path) -> RunPlan:
    """Return the plan whose variable names the folder of a prepared data set; its files are all in the first one's."""
    asset, place = next(iter(places.items()))
    folder = data / PurePosixPath(asset.path).parent if asset.source == "url" else place or data
    inside = data_inside(plan, folder, data)
    mounts = () if not plan.traits.containerised else (Mount(source=str(folder), target=inside, read_only=True),)
    return _with_env_and_mounts(plan, {name: inside}, mounts, f"{name}: prepared in {folder}")


def _with_missing_note(plan: RunPlan, here: Mapping[Asset, Path | None]) -> RunPlan:
    """Return the plan with a note on missing assets where some are here."""
    if all(place is None for place in here.values()):
        return plan
    return replace(plan, notes=(*plan.notes, _missing(here, plan)))


def _missing(here: Mapping[Asset, Path | None], plan: RunPlan) -> str:
    """Return what the run fetches for itself, and what brings it where something does; "" where nothing is missing."""
    missing = [asset for asset, place in here.items() if place is None]
    refs = ", ".join(dict.fromkeys(asset.ref for asset in missing))
    can = any(asset.source == "hub" or asset.path for asset in missing)
    way = f" ({command(plan)} brings what it can)" if can else ""
    return f"fetched by the run, for it is not prepared: {refs}{way}" if missing else ""


def command(plan: RunPlan) -> str:
    """Return what to type to have a plan's assets here."""
    return f"madlite prepare --tags {plan.card.name}"


def _with_env_and_mounts(plan: RunPlan, env: Mapping[str, EnvValue], mounts: tuple[Mount, ...], note: str) -> RunPlan:
    origins = {f"env.{name}": ORIGIN for name in env} | {f"mount {mount.target}": ORIGIN for mount in mounts}
    return replace(
        plan,
        env={**plan.env, **env},
        mounts=(*plan.mounts, *mounts),
        origins={**plan.origins, **origins},
        notes=(*plan.notes, note),
    )


State = Literal["here", "to fetch", "partly here", "to check", "to build", "to make", "by each run", "unknown"]
Fetch = Callable[[Say, ProgressCallback, threading.Event], object]
"""Fetch something, and return where it is; a stop sets the event."""
_DATA_WAY = f"another folder for data: {DATA}=…"


class PrepareOptions(Value, frozen=True):
    """What the user asked of a preparation: `offline` makes no request, `refresh` also checks what is here."""

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
        if wrong := self.refused or (*find_unwritable(demands), *find_full_disks(demands)):
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
        if asset.source == "made":  # its size is unknown
            demand = Demand(folder=self.data, bytes=0, way=_DATA_WAY, writes=True)
            return replace(requirement, state="to make", makes=asset, demand=demand)
        if hub:
            return (self._in_cache if offline else self._on_hub)(requirement, asset, cache, access)
        return requirement if offline else self._on_web(requirement, asset)

    def _on_hub(self, requirement: Requirement, asset: Asset, cache: Path, access: Access) -> Requirement:
        try:
            listing = list_files(asset, access)
        except Refused as refused:
            who = _requested_by(requirement.run) if isinstance(refused, Unknown) else ""
            self.refused.append((refused.message, "; ".join(filter(None, (refused.hint, who)))))
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
            demand=Demand(folder=cache, bytes=missing, way=way, within=repo_folder(asset, cache) / "blobs"),
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
        fetch, place = self._download(asset, listing, cache, access), str(there.folder)
        return replace(requirement, state="here", size=listing.bytes, fetch=fetch, place=place, note=note)

    def _download(self, asset: Asset, listing: Listing, cache: Path, access: Access) -> Fetch:
        def fetch(say: Say, tell: ProgressCallback, stop: threading.Event) -> Path:
            verify = self._wanted.refresh and not self._wanted.offline
            return RepoDownload(asset, listing, cache, access, say, tell, stop, verify).run(self.data)

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
            key = (asset.source, asset.ref, asset.revision, asset.path, is_dataset(asset), hub)
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

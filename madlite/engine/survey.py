"""What planned runs need from elsewhere: what of it is here, what is missing, and what keeps it from being fetched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from madlite.assets.download import Source
from madlite.assets.hub import Access, Listing, ask
from madlite.assets.hub_fetch import missing_bytes
from madlite.assets.hub_words import Refused
from madlite.assets.places import CACHES, DATA, data_folder, find_token, hub_cache, hub_endpoint, stored_token
from madlite.assets.presence import COMMIT, find_asset, size_of
from madlite.assets.records import is_dataset
from madlite.assets.room import Demand, find_tight
from madlite.assets.url_fetch import look_up, part_of
from madlite.engine.prepared import around, needed_assets
from madlite.engine.screen import Planned
from madlite.errors import CheckFailed, RuntimeProblem
from madlite.plan.options import Options
from madlite.plugins import Plugins
from madlite.run.docker_image import is_here
from madlite.types import Asset, Status, Value

State = Literal["here", "to fetch", "partly here", "to build", "to make", "by each run", "unknown"]


class Wish(Value, frozen=True):
    """What the user asked of a survey: `offline` asks nobody, `refresh` asks also for what is here."""

    offline: bool = False
    refresh: bool = False
    images: bool = True


class HubJob(Value, frozen=True):
    """Files of a repository to be fetched into the hub's cache."""

    asset: Asset
    listing: Listing
    cache: Path


class UrlJob(Value, frozen=True):
    """A file of the web to be fetched."""

    asset: Asset
    source: Source


class MadeJob(Value, frozen=True):
    """A data set that a run's own preparation makes."""

    asset: Asset


class ImageJob(Value, frozen=True):
    """A run's image to be built or pulled."""


class Need(Value, frozen=True):
    """One thing that runs need; sizes in bytes, None where nobody knows, `missing` what is still to come.

    `one` is the first run that needs it, `place` where it lies or will lie, `job` how it is had where it is not here.
    """

    what: str
    source: str
    state: State
    place: str
    one: Planned
    size: int | None = None
    missing: int = 0
    job: HubJob | UrlJob | MadeJob | ImageJob | None = None
    note: str = ""


class Survey(Value, frozen=True):
    """Everything that runs need, in the order in which it is fetched, and what is refused of it."""

    needs: tuple[Need, ...]
    refused: tuple[tuple[str, str], ...]
    access: Access
    data: Path

    def check(self) -> None:
        """Refuse to fetch anything where something of it cannot be had, or there is too little room.

        Raises:
            CheckFailed: all that is wrong.
        """
        if wrong := self.refused or tuple(find_tight(self._demands())):
            raise CheckFailed.of_all(wrong)

    def _demands(self) -> Iterator[Demand]:
        for need in self.needs:
            if isinstance(need.job, HubJob):
                yield Demand(
                    folder=need.job.cache, bytes=need.missing, way=f"another folder: HF_HOME=… or {CACHES[0]}=…"
                )
            elif isinstance(need.job, UrlJob):
                yield Demand(folder=self.data, bytes=need.missing, way=f"another folder for data: {DATA}=…")


def survey(planned: Sequence[Planned], plugins: Plugins, options: Options, wish: Wish) -> Survey:
    """Return what the runs need; the hub is asked for what is not here in full, nothing is fetched."""
    runs = [one for one in planned if one.plan.blocked is None or one.plan.blocked.status is not Status.SKIPPED]
    data = data_folder(options.environ)
    looker = _Looker(_access(runs, options.environ, wish), data, options.environ, wish)
    needs = [*(_images(runs, options.environ, wish) if wish.images else ())]
    needs += [looker.look(asset, one) for asset, one in _merged(runs, plugins)]
    if wish.offline:
        looker.refused += [_not_here(need) for need in needs if need.state not in ("here", "by each run")]
    return Survey(needs=tuple(needs), refused=tuple(looker.refused), access=looker.access, data=data)


def _access(runs: Iterable[Planned], environ: Mapping[str, str], wish: Wish) -> Access:
    """Return where and as whom the hub is asked: with the token that the runs get, else the one that is stored here."""
    given = (find_token(one.plan.env) for one in runs)
    token = next(filter(None, given), None) or find_token(environ)
    return Access(endpoint=hub_endpoint(environ), token=token or (None if wish.offline else stored_token()))


def _images(runs: Iterable[Planned], environ: Mapping[str, str], wish: Wish) -> Iterator[Need]:
    seen = []
    for one in runs:
        image = one.plan.image
        if image is None or one.plan.runtime != "docker" or image in seen:
            continue
        seen.append(image)
        builds = image.dockerfile is not None and not image.prebuilt
        source = str(image.dockerfile) if builds else image.registry or "registry"
        need = Need(what=f"image {image.ref}", source=source, state="here", place="container engine", one=one)
        try:
            if is_here(image, environ) and not (builds and not wish.offline):
                yield need
                continue
        except RuntimeProblem as problem:
            need = replace(need, note=problem.message)
        yield replace(need, state="to build" if builds else "to fetch", job=ImageJob())


def _merged(runs: Iterable[Planned], plugins: Plugins) -> Iterator[tuple[Asset, Planned]]:
    """Yield what the runs need, each once, a repository with all its patterns; what runs make comes last."""
    found: dict[tuple[object, ...], tuple[Asset, Planned]] = {}
    for one in runs:
        for asset in needed_assets(one.plan, one.backends, plugins):
            key = (asset.source, asset.ref, asset.revision, asset.path, is_dataset(asset))
            before = found.get(key)
            found[key] = (_both(before[0], asset), before[1]) if before else (asset, one)
    order = ("hub", "url", "made")
    yield from sorted(found.values(), key=lambda pair: order.index(pair[0].source))


def _both(one: Asset, other: Asset) -> Asset:
    every = not one.files or not other.files
    return replace(
        one,
        kind="model" if "model" in (one.kind, other.kind) else one.kind,
        gated=one.gated or other.gated,
        files=() if every else tuple(dict.fromkeys((*one.files, *other.files))),
        hint=one.hint or other.hint,
    )


class _Looker:
    """Looks for assets one by one and gathers what is refused."""

    def __init__(self, access: Access, data: Path, environ: Mapping[str, str], wish: Wish) -> None:
        self.access, self.refused = access, list[tuple[str, str]]()
        self._data, self._environ, self._wish = data, environ, wish

    def look(self, asset: Asset, one: Planned) -> Need:
        """Return what is known of an asset; the network is asked where it is not here in full."""
        cache = hub_cache(around(one.plan, self._environ))
        here = find_asset(asset, cache, self._data)
        moves = asset.source == "hub" and not COMMIT.fullmatch(asset.revision)
        need = Need(
            what=f"{asset.kind} {asset.ref if asset.source == 'hub' else asset.path or asset.ref}",
            source=_source(asset, self.access),
            state="to fetch",
            place=str(here or (cache if asset.source == "hub" else self._data / asset.path)),
            one=one,
            size=asset.size_bytes,
        )
        if asset.source != "hub" and not asset.path:
            return replace(need, state="by each run", place="-", note=asset.hint)
        if here is not None and not (self._wish.refresh and moves and not self._wish.offline):
            return replace(need, state="here", size=_size_here(asset, here))
        if asset.source == "made":
            return replace(need, state="to make", job=MadeJob(asset=asset))
        if self._wish.offline:
            return need
        return self._on_hub(need, asset, cache) if asset.source == "hub" else self._on_web(need, asset)

    def _on_hub(self, need: Need, asset: Asset, cache: Path) -> Need:
        try:
            listing = ask(asset, self.access)
        except Refused as refused:
            self.refused.append((refused.message, refused.hint))
            return replace(need, state="unknown")
        missing = missing_bytes(asset, listing, cache)
        return replace(
            need,
            state="to fetch" if missing == listing.bytes else "partly here",
            size=listing.bytes,
            missing=missing,
            job=HubJob(asset=asset, listing=listing, cache=cache),
            note=f"it has no {', '.join(listing.absent)}" if listing.absent else "",
        )

    def _on_web(self, need: Need, asset: Asset) -> Need:
        try:
            source = look_up(asset, self._environ)
        except RuntimeProblem as problem:
            self.refused.append((problem.message, problem.hint))
            return replace(need, state="unknown")
        whole = source.size is not None and size_of(self._data / asset.path) == source.size
        have = (source.size or 0) if whole else max(size_of(part_of(asset, self._data)), 0)
        return replace(
            need,
            state="partly here" if have else "to fetch",
            size=source.size,
            missing=max((source.size or 0) - have, 0),
            job=UrlJob(asset=asset, source=source),
        )


def _source(asset: Asset, access: Access) -> str:
    if asset.source == "made":
        return "the run's own preparation"
    if asset.source == "url":
        return asset.ref
    words = (access.endpoint, f"revision {asset.revision}" if asset.revision else "", "gated" if asset.gated else "")
    return ", ".join(filter(None, words))


def _size_here(asset: Asset, place: Path) -> int | None:
    if asset.source == "url":
        return size_of(place)
    files = (file for file in place.rglob("*") if file.is_file())
    return sum(file.stat().st_size for file in files)


def _not_here(need: Need) -> tuple[str, str]:
    return (
        f"{need.what} is not here in full, and offline nothing is fetched",
        "madlite prepare where there is a network, without --offline and HF_HUB_OFFLINE",
    )

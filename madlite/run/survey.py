"""What planned runs need from elsewhere: what of it is here, what is missing, and what keeps it from being fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite.assets.hub import Access, Listing, ask
from madlite.assets.hub_fetch import missing_bytes
from madlite.assets.hub_words import Refused, Unknown
from madlite.assets.places import (
    CACHES,
    Token,
    data_folder,
    find_token,
    hub_cache,
    hub_endpoint,
    is_offline,
    stored_token,
)
from madlite.assets.presence import find_asset, size_of
from madlite.assets.records import is_dataset
from madlite.assets.unnoted import find_unnoted
from madlite.assets.url_fetch import look_up, part_of
from madlite.backends.loader import Plugins
from madlite.errors import RuntimeProblem
from madlite.images.image import is_here
from madlite.model import Asset, Cause, Status, Value
from madlite.plan.context import Options
from madlite.run.needs import HubJob, ImageJob, MadeJob, Need, Survey, UrlJob
from madlite.run.prepared import around, given_env, needed_assets, settings
from madlite.run.screen import Planned


class Wish(Value, frozen=True):
    """What the user asked of a survey: `offline` asks nobody, `refresh` asks also for what is here."""

    offline: bool = False
    refresh: bool = False
    images: bool = True


def survey(planned: Sequence[Planned], plugins: Plugins, options: Options, wish: Wish) -> Survey:
    """Return what the runs need; the hub is asked for what is not here in full, nothing is fetched."""
    runs = [one for one in planned if one.plan.blocked is None or one.plan.blocked.status is not Status.SKIPPED]
    data = data_folder(options.environ)
    looker = _Looker(_token(runs, options.environ, wish), data, options.environ, wish)
    needs = [*(_images(runs, options.environ, looker.is_offline) if wish.images else ())]
    needs += [looker.look(asset, one) for asset, one in _merged(runs, plugins, options.environ)]
    blocked = [one.plan.blocked for one in runs if one.plan.blocked is not None]  # an engine or GPUs may come later
    looker.refused += dict.fromkeys((why.reason, why.hint) for why in blocked if why.cause is Cause.PREPARE)
    looker.refused += [_not_here(need) for need in needs if looker.is_offline(need.one) and not _is_fine(need)]
    access = Access(endpoint=hub_endpoint(options.environ), token=looker.token)
    return Survey(needs=tuple(needs), refused=tuple(looker.refused), access=access, data=data)


def _token(runs: Iterable[Planned], environ: Mapping[str, str], wish: Wish) -> Token | None:
    """Return as whom the hub is asked: with the token that the runs get, else the one that is stored here."""
    given = (find_token(one.plan.env) for one in runs)
    token = next(filter(None, given), None) or find_token(environ)
    return token or (None if wish.offline else stored_token())


def _is_fine(need: Need) -> bool:
    return need.state in ("here", "by each run")


def _images(
    runs: Iterable[Planned], environ: Mapping[str, str], is_offline: Callable[[Planned], bool]
) -> Iterator[Need]:
    seen = []
    for one in runs:
        image = one.plan.image
        if image is None or not one.plan.traits.containerised or image in seen:
            continue
        seen.append(image)
        builds = image.dockerfile is not None and not image.prebuilt
        source = str(image.dockerfile) if builds else image.registry or "registry"
        need = Need(what=f"image {image.ref}", source=source, state="here", place="container engine", one=one)
        try:
            if is_here(image, environ) and not (builds and not is_offline(one)):
                yield need
                continue
        except RuntimeProblem as problem:
            need = replace(need, note=problem.message)
        yield replace(need, state="to build" if builds else "to fetch", job=ImageJob())


def _merged(runs: Iterable[Planned], plugins: Plugins, environ: Mapping[str, str]) -> Iterator[tuple[Asset, Planned]]:
    """Yield what the runs need, each once, a repository with all its patterns; what runs make comes last."""
    found: dict[tuple[object, ...], tuple[Asset, Planned]] = {}
    for one in runs:
        for asset in needed_assets(one.plan, one.backends, plugins):
            where = around(one.plan, environ)
            hub = (hub_endpoint(settings(one.plan, environ)), hub_cache(where)) if asset.source == "hub" else ()
            key = (asset.source, asset.ref, asset.revision, asset.path, is_dataset(asset), hub)
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

    def __init__(self, token: Token | None, data: Path, environ: Mapping[str, str], wish: Wish) -> None:
        self.token, self.refused = token, list[tuple[str, str]]()
        self._data, self._environ, self._wish = data, environ, wish

    def is_offline(self, one: Planned) -> bool:
        """Say whether nobody may be asked for what a run needs: a plan's own variables go before the caller's."""
        return self._wish.offline or is_offline(settings(one.plan, self._environ))

    def look(self, asset: Asset, one: Planned) -> Need:
        """Return what is known of an asset; the network is asked where it is not here in full."""
        cache = hub_cache(around(one.plan, self._environ))
        here = find_asset(asset, cache, self._data)
        offline, access = self.is_offline(one), self._access(one)
        need = Need(
            what=f"{asset.kind} {asset.ref if asset.source == 'hub' else asset.path or asset.ref}",
            source=_source(asset, access),
            state="to fetch",
            place=str(here or (cache if asset.source == "hub" else self._data / asset.path)),
            one=one,
            size=asset.size_bytes,
            note=_note(asset, one),
        )
        if asset.source != "hub" and not asset.path:
            return replace(need, state="by each run", place="-", note=asset.hint)
        again = self._wish.refresh and asset.source == "hub" and not offline
        if here is not None and not again:
            return replace(need, state="here", size=_size_here(asset, here))
        if asset.source == "made":
            return replace(need, state="to make", job=MadeJob(asset=asset))
        if asset.source == "hub":
            return (_by_its_look if offline else self._on_hub)(need, asset, cache, access)
        return need if offline else self._on_web(need, asset)

    def _access(self, one: Planned) -> Access:
        return Access(endpoint=hub_endpoint(settings(one.plan, self._environ)), token=self.token)

    def _on_hub(self, need: Need, asset: Asset, cache: Path, access: Access) -> Need:
        try:
            listing = ask(asset, access)
        except Refused as refused:
            who = _asker(need.one) if isinstance(refused, Unknown) else ""
            self.refused.append((refused.message, "; ".join(filter(None, (refused.hint, who)))))
            return replace(need, state="unknown")
        missing = missing_bytes(asset, listing, cache)
        absent = f"it has no {', '.join(listing.absent)}" if listing.absent else ""
        return replace(
            need,
            state="to check" if missing == 0 else "to fetch" if missing == listing.bytes else "partly here",
            size=listing.bytes,
            missing=missing,
            job=HubJob(asset=asset, listing=listing, cache=cache, access=access, verify=self._wish.refresh),
            note="; ".join(filter(None, (need.note, absent))),
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


def _by_its_look(need: Need, asset: Asset, cache: Path, access: Access) -> Need:
    """Return what is told of a repository that another tool fetched, where nobody can be asked what it has."""
    found = find_unnoted(asset, cache)
    if found is None:
        return need
    listing = Listing(commit=found.commit, files=found.files)
    note = "complete as far as its own files tell: another tool fetched it, and nobody noted what the hub has"
    job = HubJob(asset=asset, listing=listing, cache=cache, access=access)
    return replace(need, state="here", size=listing.bytes, job=job, place=str(found.folder), note=note)


def _note(asset: Asset, one: Planned) -> str:
    """Return what a run would do without what is prepared for it."""
    own = next((name for name in CACHES if one.plan.traits.containerised and given_env(one.plan).get(name)), "")
    if asset.source != "hub" or not own:
        return ""
    return f"its container has a cache of its own ({own}={given_env(one.plan)[own]}), and does not see this one"


def _asker(one: Planned) -> str:
    backends = ", ".join(dict.fromkeys(backend.name for backend in one.backends))
    return f"asked for by the recipe and settings of {one.plan.card.name} (backend {backends})"


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

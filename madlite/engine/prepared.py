"""A plan uses what `madlite prepare` brought: mounts and variables, so that the run fetches nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from madlite.assets.places import CACHES, OFFLINE, data_folder, hub_cache, is_on
from madlite.assets.presence import find_asset
from madlite.plugins import Plugins
from madlite.types import Asset, Backend, EnvValue, Mount, RunPlan

ORIGIN = "madlite prepare"
HUB_INSIDE, DATA_INSIDE = "/madlite/hub", "/madlite/data"
_SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")


def needed_assets(plan: RunPlan, backends: Iterable[Backend], plugins: Plugins) -> tuple[Asset, ...]:
    """Return what a plan's backends say that it needs from elsewhere, each once."""
    own = replace(plan, env={name: text for name, text in plan.env.items() if _is_given(plan, name)})
    answers = (plugins.ask(backend, "assets", own, otherwise=()) or () for backend in backends)
    return tuple(dict.fromkeys(asset for found in answers for asset in found))


def _is_given(plan: RunPlan, name: str) -> bool:
    return plan.origins.get(f"env.{name}") != ORIGIN


def use_prepared(plan: RunPlan, assets: Sequence[Asset], environ: Mapping[str, str]) -> RunPlan:
    """Return the plan with what of its assets is on this machine; unchanged where nothing is.

    The hub's cache is used once everything that the plan needs is here: a run that fetches the rest of it needs a cache
    it can write to.
    """
    if plan.machine.pretended or not assets:
        return plan
    cache, data = hub_cache(around(plan, environ)), data_folder(environ)
    here = {asset: find_asset(asset, cache, data) for asset in assets}
    for name in dict.fromkeys(asset.env for asset in assets if asset.env and asset.env not in plan.env):
        places = {asset: here[asset] for asset in assets if asset.env == name}
        if all(places.values()):
            plan = _with_data(plan, name, places, data)
    hub = [asset for asset in assets if asset.source == "hub"]
    if not hub or _has_own(plan, environ):
        return plan
    return _with_hub(plan, hub, cache) if all(here.values()) else _told(plan, here)


def around(plan: RunPlan, environ: Mapping[str, str]) -> dict[str, str]:
    """Return where a plan's hub cache is looked for: this environment, and on the host the plan's over it."""
    own = {name: str(value) for name, value in plan.env.items()} if plan.runtime == "host" else {}
    return {**environ, **own}


def data_inside(plan: RunPlan, folder: Path, data: Path) -> str:
    """Return a folder of prepared data as the plan's actions see it."""
    if plan.runtime == "host":
        return str(folder)
    return str(PurePosixPath(DATA_INSIDE) / folder.relative_to(data).as_posix())


def _has_own(plan: RunPlan, environ: Mapping[str, str]) -> bool:
    """Say whether the user wants the run to use the network, or gave its container a cache."""
    env: Mapping[str, EnvValue] = around(plan, environ) if plan.runtime == "host" else plan.env
    online = any(env.get(name) and not is_on(env[name]) for name in OFFLINE)
    return online or (plan.runtime != "host" and any(plan.env.get(name) for name in CACHES))


def _with_hub(plan: RunPlan, hub: Sequence[Asset], cache: Path) -> RunPlan:
    inside = str(cache) if plan.runtime == "host" else HUB_INSIDE
    mounts = () if plan.runtime == "host" else (Mount(source=str(cache), target=inside, read_only=True),)
    env = {"HF_HUB_CACHE": inside, **{name: "1" for name in _SWITCHES if name not in plan.env}}
    refs = ", ".join(dict.fromkeys(asset.ref for asset in hub))
    return _changed(plan, env, mounts, f"{refs}: prepared in {cache}, nothing is fetched")


def _with_data(plan: RunPlan, name: str, places: Mapping[Asset, Path | None], data: Path) -> RunPlan:
    """Return the plan whose variable names the folder of a prepared data set; its files are all in the first one's."""
    asset, place = next(iter(places.items()))
    folder = data / PurePosixPath(asset.path).parent if asset.source == "url" else place or data
    inside = data_inside(plan, folder, data)
    mounts = () if plan.runtime == "host" else (Mount(source=str(folder), target=inside, read_only=True),)
    return _changed(plan, {name: inside}, mounts, f"{name}: prepared in {folder}")


def _told(plan: RunPlan, here: Mapping[Asset, Path | None]) -> RunPlan:
    """Say what is missing where some of it is here."""
    missing = dict.fromkeys(asset.ref for asset, place in here.items() if place is None)
    if all(place is None for place in here.values()):
        return plan
    note = f"fetched by the run, for it is not prepared: {', '.join(missing)} ({command(plan)} brings what it can)"
    return replace(plan, notes=(*plan.notes, note))


def command(plan: RunPlan) -> str:
    """Return what to type to have a plan's assets here."""
    return f"madlite prepare --tags {plan.card.name}"


def _changed(plan: RunPlan, env: Mapping[str, EnvValue], mounts: tuple[Mount, ...], note: str) -> RunPlan:
    origins = {f"env.{name}": ORIGIN for name in env} | {f"mount {mount.target}": ORIGIN for mount in mounts}
    return replace(
        plan,
        env={**plan.env, **env},
        mounts=(*plan.mounts, *mounts),
        origins={**plan.origins, **origins},
        notes=(*plan.notes, note),
    )

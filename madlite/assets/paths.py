"""Where fetched things lie, and what the environment reports about the hub.

Variables: https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from string import Template

from msgspec.structs import replace

from madlite.assets.cache import find_asset, repo_folder
from madlite.backends.loader import Plugins
from madlite.model import Asset, Backend, EnvValue, Mount, RunPlan, Secret, Value

TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MAD_SECRETS_HFTOKEN", "MAD_SECRETS_HF_TOKEN")
"""Variables that hand a Hugging Face token to a run."""
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
CACHES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
DATA = "MADLITE_DATA_DIR"
HUB = "https://huggingface.co"
_ON = ("1", "on", "yes", "true")  # as huggingface_hub reads them


class Token(Value, frozen=True):
    """A token of the hub and the variable, or file, it comes from."""

    value: Secret
    origin: str


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder in which huggingface_hub keeps repositories."""
    for name in CACHES:
        if environ.get(name):
            return _path(environ[name], environ)
    home = _path(environ["HF_HOME"], environ) if environ.get("HF_HOME") else _cache(environ) / "huggingface"
    return home / "hub"


def data_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of prepared data."""
    return _path(environ[DATA], environ) if environ.get(DATA) else _cache(environ) / "madlite/data"


def hub_endpoint(environ: Mapping[str, str]) -> str:
    """Return the address of the hub."""
    return (environ.get("HF_ENDPOINT", "").strip() or HUB).rstrip("/")


def is_offline(env: Mapping[str, EnvValue]) -> bool:
    """Return whether the environment forbids to ask the hub."""
    return any(is_on(env.get(name, "")) for name in OFFLINE)


def is_on(value: EnvValue) -> bool:
    """Return whether a switch of the hub's libraries is on."""
    return str(value).strip().lower() in _ON


def find_token(env: Mapping[str, EnvValue]) -> Token | None:
    """Return the hub's token of an environment."""
    for name in TOKENS:
        given = env.get(name, "")
        text = given.reveal() if isinstance(given, Secret) else given
        if text.strip():
            return Token(value=Secret(text.strip()), origin=name)
    return None


def stored_token() -> Token | None:
    """Return the token that `hf auth login` left on this machine."""
    from huggingface_hub import get_token

    text = (get_token() or "").strip()
    return Token(value=Secret(text), origin="hf auth login") if text else None


def _cache(environ: Mapping[str, str]) -> Path:
    folder = environ.get("XDG_CACHE_HOME")
    return _path(folder, environ) if folder else _home(environ) / ".cache"


def _path(text: str, environ: Mapping[str, str]) -> Path:
    """Return a folder as huggingface_hub reads it: `~` and `$NAME` mean what they mean to a shell."""
    path = Path(Template(text).safe_substitute(environ))
    if path.parts[:1] == ("~",):
        path = _home(environ).joinpath(*path.parts[1:])
    return Path(os.path.abspath(path))  # noqa: PTH100 - links stay as they are named


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


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
    plan = plan if plan.traits.containerised else _with_cached(plan, hub, here)
    return replace(plan, notes=(*plan.notes, _missing(here, plan))) if any(here.values()) else plan


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

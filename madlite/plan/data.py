"""A card's data sets → where each comes from: its mount, its variables, and the action that fetches it.

Keys, folders, variables and limits: madengine's (docs/data.md lists what differs).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from madlite.catalog.datasets import DataSets, Provider
from madlite.errors import UsageProblem
from madlite.files import exists, is_file
from madlite.types import Action, Card, DataUse, EnvValue, Mount, Secret, Value

HOME = "/data_dlm"
CUSTOM_LIMIT_S, MINIO_LIMIT_S = 1200.0, 3600.0
_SIZE = ' && du -sh -- "$1"'  # the last line of a fetch says how much it brought
_CUSTOM = 'mkdir -p -- "$1" && cd -- "$1" && bash "$2" {args}' + _SIZE
# the client goes into a folder of its own, so that it changes no package of the training's
_AWS = (
    'if ! command -v aws >/dev/null; then own=$(mktemp -d) && python3 -m pip install --quiet --target "$own" awscli '
    '&& aws() { PYTHONPATH="$own" python3 -m awscli "$@"; }; fi'
)
_SYNC = 'aws --endpoint-url "$AWS_ENDPOINT_URL_S3" s3 sync --no-progress "$2" "$1"'
_MINIO = f'mkdir -p -- "$1" && {{ {_AWS}; }} && {_SYNC}{_SIZE}'


class Surroundings(Value, frozen=True):
    """What data is looked for with: data.json's sets, service credentials, folders, and how to ask an endpoint.

    `reach` says why an endpoint cannot be reached, or nothing; `inside` and `folder` are workspace and run folder as
    the actions see them; in no `container` data lies where it is.
    """

    sets: DataSets | None
    services: Mapping[str, Mapping[str, str]]
    workspace: Path
    inside: str
    folder: str
    container: bool
    reach: Callable[[str], str]


class DataPlan(Value, frozen=True):
    """What the data sets of one card add to a plan; `problem` keeps it from starting."""

    uses: tuple[DataUse, ...] = ()
    mounts: tuple[Mount, ...] = ()
    actions: tuple[Action, ...] = ()
    env: dict[str, EnvValue] = {}
    notes: tuple[str, ...] = ()
    problem: str = ""


class _Found(Value, frozen=True):
    use: DataUse | None = None
    mounts: tuple[Mount, ...] = ()
    actions: tuple[Action, ...] = ()
    note: str = ""


def plan_data(card: Card, around: Surroundings) -> DataPlan:
    """Return where the card's data comes from.

    Raises:
        UsageProblem: only a provider that madlite does not have yet could bring it.
    """
    if not card.data:
        return DataPlan()
    if around.sets is None:
        return DataPlan(notes=(f"there is no data.json: the script has to find {', '.join(card.data)} itself",))
    if unknown := [name for name in card.data if name not in around.sets]:
        return DataPlan(problem=f"card '{card.name}' needs data set '{unknown[0]}', which data.json does not have")
    found = [_find(name, around.sets[name], n, card, around) for n, name in enumerate(card.data)]
    homes = [one.use.home for one in found if one.use]
    return DataPlan(
        uses=tuple(one.use for one in found if one.use),
        mounts=tuple(mount for one in found for mount in one.mounts),
        actions=tuple(action for one in found for action in one.actions),
        env={"MAD_DATAHOME": ",".join(homes)} if homes else {},
        notes=tuple(one.note for one in found if one.note),
    )


def _find(name: str, providers: Mapping[str, Provider], n: int, card: Card, around: Surroundings) -> _Found:
    """Ask the providers in their order; the first that has the data is used."""
    missing: list[str] = []
    for kind, provider in providers.items():
        if kind not in _KINDS:
            why = f" ({'; '.join(missing)})" if missing else ""
            raise UsageProblem(
                f"card '{card.name}': data set '{name}' comes from {kind}, a provider madlite does not have yet{why}",
                "copy it to this machine and name the folder under local in data.json",
            )
        problem, make = _KINDS[kind]
        if reason := problem(provider, around):
            missing.append(f"{kind}: {reason}")
        else:
            use = DataUse(name=name, provider=kind, home=_home(name, kind, provider, n, around))
            return make(use, provider, around)
    why = "; ".join(missing) or "it names none"
    return _Found(note=f"no provider has data set '{name}' ({why}): the script runs without it")


def _home(name: str, kind: str, provider: Provider, n: int, around: Surroundings) -> str:
    """Return the folder the data is in, as the actions see it; a local one of its own name is where it was wanted."""
    if around.container:
        return provider.home if kind == "local" and provider.home else f"{provider.home or HOME}_{n}"
    if kind == "local":
        return str(around.workspace / provider.path)
    return str(around.workspace / provider.mirrorlocal / name) if provider.mirrorlocal else f"{around.folder}/data_{n}"


def _no_local(provider: Provider, around: Surroundings) -> str:
    return _why_not(exists, provider.path, "on this machine", around)


def _why_not(ask: Callable[[Path], bool], path: str, place: str, around: Surroundings) -> str:
    try:
        return "" if ask(around.workspace / path) else f"{path} is not {place}"
    except UsageProblem as problem:
        return problem.message


def _local(use: DataUse, provider: Provider, around: Surroundings) -> _Found:
    source = str(around.workspace / provider.path)
    mount = Mount(source=source, target=use.home, read_only=provider.readwrite != "true")
    return _Found(use=use, mounts=(mount,) if around.container else (), note=_led_out(source, use.name, around))


def _led_out(source: str, name: str, around: Surroundings) -> str:
    """Return where a link takes a folder that is below the workspace as it is written: a workload may have laid it."""
    place, home = os.path.realpath(source), os.path.realpath(around.workspace)
    spelled = Path(source).is_relative_to(around.workspace)
    return (
        f"data set '{name}': a link takes {source} to {place}"
        if spelled and not Path(place).is_relative_to(home)
        else ""
    )


def _no_custom(provider: Provider, around: Surroundings) -> str:
    return _why_not(is_file, provider.path, "in this folder", around)


def _custom(use: DataUse, provider: Provider, around: Surroundings) -> _Found:
    command = _CUSTOM.replace("{args}", provider.args)  # the author's shell text, for the workload's shell
    argv = ("bash", "-c", command, "data", use.home, f"{around.inside}/{provider.path}")
    return _fetched(use, provider, around, Action(kind="data", argv=argv, timeout_s=CUSTOM_LIMIT_S))


def _no_minio(provider: Provider, around: Surroundings) -> str:
    endpoint = around.services.get("MAD_MINIO", {}).get("MINIO_ENDPOINT", "")
    if not endpoint:
        return "MAD_MINIO with MINIO_ENDPOINT is neither in the environment nor in credential.json"
    return around.reach(endpoint)


def _minio(use: DataUse, provider: Provider, around: Surroundings) -> _Found:
    service = around.services["MAD_MINIO"]
    env: dict[str, EnvValue] = {
        "AWS_ACCESS_KEY_ID": Secret(service.get("USERNAME", "")),
        "AWS_SECRET_ACCESS_KEY": Secret(service.get("PASSWORD", "")),
        "AWS_ENDPOINT_URL": _endpoint(around),
        "AWS_ENDPOINT_URL_S3": _endpoint(around),
        "AWS_DEFAULT_REGION": service.get("REGION", "us-east-1"),
    }
    place = provider.path.rpartition("://")[2].lstrip("/")  # s3://bucket/key, minio://bucket/key, bucket/key
    argv = ("bash", "-c", _MINIO, "data", use.home, f"s3://{place}")
    return _fetched(use, provider, around, Action(kind="data", argv=argv, timeout_s=MINIO_LIMIT_S, env=env))


def _endpoint(around: Surroundings) -> str:
    service = around.services.get("MAD_MINIO", {})
    return service.get("AWS_ENDPOINT_URL_S3") or service.get("MINIO_ENDPOINT", "")


def _fetched(use: DataUse, provider: Provider, around: Surroundings, action: Action) -> _Found:
    """Return what a fetch adds; a mirror is a folder of the machine under the data set's name."""
    if not provider.mirrorlocal:
        return _Found(use=use, actions=(action,))
    mirror = str(around.workspace / provider.mirrorlocal / use.name)
    mount = Mount(source=mirror, target=use.home, create=True)
    note = _led_out(mirror, use.name, around)
    return _Found(use=use, actions=(action,), mounts=(mount,) if around.container else (), note=note)


_KINDS = {"custom": (_no_custom, _custom), "local": (_no_local, _local), "minio": (_no_minio, _minio)}

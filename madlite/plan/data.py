"""A card's data sets → where each comes from: its mount, its variables, and the action that fetches it.

Keys, folders, variables and limits: madengine's (docs/data.md lists what differs).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from madlite.catalog.datasets import Provider
from madlite.errors import UsageProblem
from madlite.files import exists, is_file
from madlite.model import Action, Card, DataUse, EnvValue, Mount, Secret, Value
from madlite.plan.inputs import RunInputs

HOME = "/data_dlm"
CUSTOM_LIMIT_S, S3_LIMIT_S, NAS_COPY_LIMIT_S, NAS_MOUNT_LIMIT_S = 1200.0, 3600.0, 2400.0, 120.0
AWS_REGION = "us-east-2"
_SIZE = ' && du -sh -- "$1"'  # the last line of a fetch is the size of the data
_CUSTOM = 'mkdir -p -- "$1" && cd -- "$1" && bash "$2" {args}' + _SIZE
# the client goes into a folder of its own, so that it changes no package of the training's
_AWS = (
    'if ! command -v aws >/dev/null; then own=$(mktemp -d) && python3 -m pip install --quiet --target "$own" awscli '
    '&& aws() { PYTHONPATH="$own" python3 -m awscli "$@"; }; fi'
)
# a bucket or a folder of it is copied whole; of any other path the object of that name
_SYNC = (
    'rest=${place#s3://} && name=${place##*/} && if [ "$rest" = "$name" ] || '
    'aws "$@" s3 ls "$place" | grep -qF " PRE $name/"; then aws "$@" s3 sync --no-progress "$place" "$home"; '
    'else aws "$@" s3 sync --no-progress "${place%/*}" "$home" --exclude "*" --include "$name"; fi'
)
_CHECK_CONTENT = 'if [ -z "$(ls -A "$home")" ]; then echo "$place is empty or not there" >&2; exit 1; fi'
_S3 = (
    f'home=$1 place=${{2%/}} && shift 2 && mkdir -p -- "$home" && {{ {_AWS}; }} && {_SYNC} && {_CHECK_CONTENT} && '
    'du -sh -- "$home"'
)
_FIND_MISSING = (
    'lacks=; for tool in ssh sshpass {copier}; do command -v "$tool" >/dev/null || lacks="$lacks $tool"; done'
)
_INSTALL = (
    'if [ -n "$lacks" ]; then if command -v apt-get >/dev/null; then apt-get update -qq; '
    "apt-get install -y -qq openssh-client sshpass {copier}; elif command -v yum >/dev/null; then "
    "yum install -y -q openssh-clients sshpass {copier}; fi; fi"
)
_REFUSE = 'if [ -n "$lacks" ]; then echo "data of a NAS needs$lacks, not installed here" >&2; exit 127; fi'
_SSH = "ssh -p $3 -o StrictHostKeyChecking=accept-new"  # a port is digits alone
# -s: no shell of the storage reads the path
_COPY = f'mkdir -p -- "$1" && sshpass -e rsync -azs -e "{_SSH}" -- "$2/" "$1/"'
_MOUNT = (
    'mkdir -p -- "$1" && sshfs "$2" "$1" -p "$3" -o "ssh_command=sshpass -e ssh" -o StrictHostKeyChecking=accept-new'
)


class DataPlan(Value, frozen=True):
    """What the data sets of one card add to a plan; `problem` keeps it from starting."""

    uses: tuple[DataUse, ...] = ()
    mounts: tuple[Mount, ...] = ()
    actions: tuple[Action, ...] = ()
    env: dict[str, EnvValue] = {}
    notes: tuple[str, ...] = ()
    problem: str = ""


class _DataSource(Value, frozen=True):
    use: DataUse | None = None
    mounts: tuple[Mount, ...] = ()
    actions: tuple[Action, ...] = ()
    note: str = ""
    problem: str = ""


def plan_data(inputs: RunInputs) -> DataPlan:
    """Return where the card's data comes from."""
    card = inputs.request.card
    if not card.data:
        return DataPlan()
    if inputs.data_sets is None:
        return DataPlan(notes=(f"there is no data.json: the script has to find {', '.join(card.data)} itself",))
    if unknown := [name for name in card.data if name not in inputs.data_sets]:
        return DataPlan(problem=f"card '{card.name}' needs data set '{unknown[0]}', which data.json does not have")
    found = [_find(name, inputs.data_sets[name], n, card, inputs) for n, name in enumerate(card.data)]
    homes = [one.use.home for one in found if one.use]
    return DataPlan(
        uses=tuple(one.use for one in found if one.use),
        mounts=tuple(mount for one in found for mount in one.mounts),
        actions=tuple(action for one in found for action in one.actions),
        env={"MAD_DATAHOME": ",".join(homes)} if homes else {},
        notes=tuple(one.note for one in found if one.note),
        problem=next((one.problem for one in found if one.problem), ""),
    )


def _find(name: str, providers: Mapping[str, Provider], n: int, card: Card, inputs: RunInputs) -> _DataSource:
    """Try the providers in order; the first that has the data is used."""
    missing: list[str] = []
    for kind, provider in providers.items():
        problem, make = _KINDS[kind]
        if reason := problem(provider, inputs):
            missing.append(f"{kind}: {reason}")
        else:
            use = DataUse(name=name, provider=kind, home=_home(name, kind, provider, n, inputs))
            return make(use, provider, inputs)
    why = "; ".join(missing) or "it names none"
    if "aws" in providers:  # madengine too starts no run without it
        return _DataSource(problem=f"card '{card.name}': no provider has data set '{name}' ({why})")
    return _DataSource(note=f"no provider has data set '{name}' ({why}): the script runs without it")


def _home(name: str, kind: str, provider: Provider, n: int, inputs: RunInputs) -> str:
    """Return the folder the data is in, as the actions see it; a local one of its own name is where it was wanted."""
    if inputs.runtime.traits.containerised:
        return provider.home if kind == "local" and provider.home else f"{provider.home or HOME}_{n}"
    if kind == "local":
        return str(inputs.options.workspace / provider.path)
    return (
        str(inputs.options.workspace / provider.mirrorlocal / name)
        if provider.mirrorlocal
        else f"{inputs.folder_inside}/data_{n}"
    )


def _local_problem(provider: Provider, inputs: RunInputs) -> str:
    return _path_problem(exists, provider.path, "on this machine", inputs)


def _path_problem(test: Callable[[Path], bool], path: str, place: str, inputs: RunInputs) -> str:
    try:
        return "" if test(inputs.options.workspace / path) else f"{path} is not {place}"
    except UsageProblem as problem:
        return problem.message


def _local(use: DataUse, provider: Provider, inputs: RunInputs) -> _DataSource:
    source = str(inputs.options.workspace / provider.path)
    mount = Mount(source=source, target=use.home, read_only=provider.readwrite != "true")
    return _DataSource(
        use=use,
        mounts=(mount,) if inputs.runtime.traits.containerised else (),
        note=_link_note(source, use.name, inputs),
    )


def _link_note(source: str, name: str, inputs: RunInputs) -> str:
    """Return a note where a link leads a path of the workspace outside of it: a workload may have made the link."""
    place, home = os.path.realpath(source), os.path.realpath(inputs.options.workspace)
    spelled = Path(source).is_relative_to(inputs.options.workspace)
    return (
        f"data set '{name}': a link takes {source} to {place}"
        if spelled and not Path(place).is_relative_to(home)
        else ""
    )


def _custom_problem(provider: Provider, inputs: RunInputs) -> str:
    return _path_problem(is_file, provider.path, "in this folder", inputs)


def _custom(use: DataUse, provider: Provider, inputs: RunInputs) -> _DataSource:
    command = _CUSTOM.replace("{args}", provider.args)  # the author's shell text, for the workload's shell
    argv = ("bash", "-c", command, "data", use.home, f"{inputs.inside}/{provider.path}")
    return _fetched(use, provider, inputs, Action(kind="data", argv=argv, timeout_s=CUSTOM_LIMIT_S))


def _service(name: str, inputs: RunInputs) -> Mapping[str, str]:
    return next(iter(inputs.services.get(name, ())), {})


def _minio_problem(provider: Provider, inputs: RunInputs) -> str:
    endpoint = _service("MAD_MINIO", inputs).get("MINIO_ENDPOINT", "")
    if not endpoint:
        return "MAD_MINIO with MINIO_ENDPOINT is neither in the environment nor in credential.json"
    return inputs.check_endpoint(endpoint)


def _minio(use: DataUse, provider: Provider, inputs: RunInputs) -> _DataSource:
    service = _service("MAD_MINIO", inputs)
    endpoint = service.get("AWS_ENDPOINT_URL_S3") or service.get("MINIO_ENDPOINT", "")
    return _of_bucket(use, provider, inputs, service, service.get("REGION", "us-east-1"), endpoint)


def _aws_problem(provider: Provider, inputs: RunInputs) -> str:
    service = _service("MAD_AWS_S3", inputs)
    if not service.get("USERNAME") or not service.get("PASSWORD"):
        return "MAD_AWS_S3 with USERNAME and PASSWORD is neither in the environment nor in credential.json"
    region = service.get("REGION", AWS_REGION)
    return inputs.check_endpoint(service.get("AWS_ENDPOINT_URL_S3") or f"https://s3.{region}.amazonaws.com")


def _aws(use: DataUse, provider: Provider, inputs: RunInputs) -> _DataSource:
    service = _service("MAD_AWS_S3", inputs)
    region, endpoint = service.get("REGION", AWS_REGION), service.get("AWS_ENDPOINT_URL_S3", "")
    return _of_bucket(use, provider, inputs, service, region, endpoint)


def _of_bucket(
    use: DataUse, provider: Provider, inputs: RunInputs, service: Mapping[str, str], region: str, endpoint: str
) -> _DataSource:
    env: dict[str, EnvValue] = {
        "AWS_ACCESS_KEY_ID": Secret(service.get("USERNAME", "")),
        "AWS_SECRET_ACCESS_KEY": Secret(service.get("PASSWORD", "")),
        "AWS_DEFAULT_REGION": region,
        **({"AWS_ENDPOINT_URL": endpoint, "AWS_ENDPOINT_URL_S3": endpoint} if endpoint else {}),
    }
    place = provider.path.rpartition("://")[2].lstrip("/")  # s3://bucket/key, minio://bucket/key, bucket/key
    where = ("--region", region, *(("--endpoint-url", endpoint) if endpoint else ()))
    argv = ("bash", "-c", _S3, "data", use.home, f"s3://{place}", *where)
    return _fetched(use, provider, inputs, Action(kind="data", argv=argv, timeout_s=S3_LIMIT_S, env=env))


def _nas_problem(provider: Provider, inputs: RunInputs) -> str:
    if not inputs.services.get("NAS_NODES"):
        return "NAS_NODES is neither in the environment nor in credential.json"
    found = [_node_problem(node, inputs) for node in inputs.services["NAS_NODES"]]
    return "" if "" in found else "; ".join(found)


def _node_problem(node: Mapping[str, str], inputs: RunInputs) -> str:
    """Return why a storage of `NAS_NODES` cannot be used, or nothing."""
    name = node.get("NAME") or node.get("HOST") or "a table without HOST"
    if lacks := [key for key in ("HOST", "USERNAME", "PASSWORD") if not node.get(key)]:
        return f"{name} of NAS_NODES has no {', '.join(lacks)}"
    port = node.get("PORT", "22")
    if not (port.isascii() and port.isdigit()):
        return f"{name} of NAS_NODES: PORT {port!r} is no number"
    return inputs.check_endpoint(f"ssh://{node['HOST']}:{port}")


def _nas(use: DataUse, provider: Provider, inputs: RunInputs) -> _DataSource:
    """Return the copy into a mirror; without one the folder itself, but on the host, where no mount is to stay."""
    node = next(node for node in inputs.services["NAS_NODES"] if not _node_problem(node, inputs))
    mounts = inputs.runtime.traits.containerised and not provider.mirrorlocal
    ready = (
        (_FIND_MISSING, _INSTALL, _FIND_MISSING, _REFUSE)
        if inputs.runtime.traits.containerised
        else (_FIND_MISSING, _REFUSE)
    )
    command = "; ".join((*ready, _MOUNT if mounts else _COPY)).replace("{copier}", "sshfs" if mounts else "rsync")
    source = f"{node['USERNAME']}@{node['HOST']}:{provider.path.rstrip('/')}"
    limit_s = NAS_MOUNT_LIMIT_S if mounts else NAS_COPY_LIMIT_S
    argv = ("bash", "-c", command, "data", use.home, source, node.get("PORT", "22"))
    env: dict[str, EnvValue] = {"SSHPASS": Secret(node["PASSWORD"])}
    return _fetched(use, provider, inputs, Action(kind="data", argv=argv, timeout_s=limit_s, env=env))


def _fetched(use: DataUse, provider: Provider, inputs: RunInputs, action: Action) -> _DataSource:
    """Return what a fetch adds; a mirror is a folder of the machine under the data set's name."""
    if not provider.mirrorlocal:
        return _DataSource(use=use, actions=(action,))
    mirror = str(inputs.options.workspace / provider.mirrorlocal / use.name)
    mount = Mount(source=mirror, target=use.home, create=True)
    note = _link_note(mirror, use.name, inputs)
    return _DataSource(
        use=use, actions=(action,), mounts=(mount,) if inputs.runtime.traits.containerised else (), note=note
    )


_KINDS = {
    "custom": (_custom_problem, _custom),
    "local": (_local_problem, _local),
    "minio": (_minio_problem, _minio),
    "nas": (_nas_problem, _nas),
    "aws": (_aws_problem, _aws),
}

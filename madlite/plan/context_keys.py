"""The keys of the context that have a meaning, with their types; names and types are madengine's (docs/context.md)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

# madengine's keys that nothing here acts on; their types are checked all the same
ELSEWHERE = ("slurm", "k8s", "kubernetes", "deploy")  # a run that they send to other machines is refused
NOT_YET = (*ELSEWHERE, "vllm", "deployment_config", "env_vars", "timeout", "debug")
# keys of a plan that stand at the top as well as below `settings`
OF_PLAN = ("silence_s", "start_silence_s", "stop_grace_s", "telemetry", "telemetry_s", "probe", "log_limit")
_Scalar: TypeAlias = str | int | float | bool  # which one a key takes is said where the values come together
_Text = Annotated[str, msgspec.Meta(min_length=1)]  # the empty text is in every line


class ScanKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of the scan for error patterns, with their types; a card can have them too."""

    log_error_pattern_scan: bool | int | str | None = None
    log_error_benign_patterns: tuple[_Text, ...] = ()
    log_error_patterns: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1)] | None = None


class Script(msgspec.Struct, frozen=True):
    """A script of the checkout that runs before or after the model."""

    path: _Text
    args: str | int | float = ""


class Tool(msgspec.Struct, frozen=True):
    """A tool of tools.json, by name, with what the context changes of it."""

    name: _Text
    cmd: str | None = None
    env_vars: dict[str, str | int | float | bool] = {}


class Known(ScanKeys, frozen=True, kw_only=True):
    """The context keys madlite acts on, with their types."""

    gpu_vendor: str | None = None
    guest_os: str | None = None
    host_os: str | None = None
    ctx_test: str | None = None
    docker_env_vars: dict[str, str | int | float | bool | None] = {}
    docker_mounts: dict[str, str] = {}
    docker_build_arg: dict[str, str | int | float | bool] = {}
    docker_gpus: str | None = None
    docker_cpus: str | None = None
    additional_docker_run_options: str = ""
    gpu_renderDs: list[int] | None = None
    model_args: str | None = None
    encapsulate_script: str | None = None
    MAD_CONTAINER_IMAGE: str | None = None
    SHM_SIZE: str | None = None
    tools: list[Tool] = []
    pre_scripts: list[Script] = []
    post_scripts: list[Script] = []
    data: dict[str, dict[str, dict[str, str | bool]]] = {}
    gen_sys_env_details: bool | None = None
    rocenv_mode: Literal["lite", "full"] = "lite"
    multi_node_args: dict[str, str | int] | None = None
    skip_perf_collection: bool = False
    settings: dict[str, str | int | float | bool] = {}
    silence_s: _Scalar | None = None
    start_silence_s: _Scalar | None = None
    stop_grace_s: _Scalar | None = None
    telemetry: _Scalar | None = None
    telemetry_s: _Scalar | None = None
    probe: _Scalar | None = None
    log_limit: _Scalar | None = None
    gpus_per_node: int | None = None
    gpu_count: int | None = None
    n_gpus: int | None = None
    num_gpus: int | None = None
    ngpus: int | None = None
    distributed: dict[str, Any] = {}  # of it the launcher
    # without effect yet, see NOT_YET
    slurm: dict[str, Any] = {}
    k8s: dict[str, Any] = {}
    kubernetes: dict[str, Any] = {}
    vllm: dict[str, Any] = {}
    deploy: dict[str, Any] = {}
    deployment_config: dict[str, Any] = {}
    env_vars: dict[str, Any] = {}
    timeout: int | float | None = None
    debug: bool = False

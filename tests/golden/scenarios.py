"""The command lines whose outcome with madengine stands in tests/data/scenarios, as madlite is given them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.factories import BASE_IMAGE

Command = tuple[str, ...]
OK, FAILED, BUILD_FAILED, USAGE = 0, 3, 2, 4


@dataclass(frozen=True)
class Scenario:
    """Commands, one after the other, with the exit code each has; `prepare` changes the checkout before the first,
    `between` before each further one."""

    name: str
    commands: tuple[Command, ...]
    exits: tuple[int, ...] = (OK,)
    versions: str = "v1 v2"
    machine: str = "amd"
    image: str = "rocm/pytorch"  # what the base image of this project's tests stands for
    output: str = "perf.csv"
    env: tuple[tuple[str, str], ...] = ()
    prepare: Callable[[Path], None] | None = None
    between: Callable[[Path], None] | None = None

    @property
    def id(self) -> str:
        return self.name if self.versions == "v1 v2" else f"{self.versions}-{self.name}"


def of_card(name: str, exit_code: int = OK, **other: object) -> Scenario:
    """Return the scenario of one card alone."""
    return Scenario(name, (run(name),), (exit_code,), **other)  # type: ignore[arg-type]


def run(*words: str) -> Command:
    return ("run", "--tags", *words)


def build(*words: str) -> Command:
    return ("build", "--tags", *words)


def context(**keys: object) -> Command:
    return ("--additional-context", json.dumps(keys))


def break_build(folder: Path) -> None:
    with (folder / "docker/dummy.ubuntu.amd.Dockerfile").open("a") as file:
        file.write("RUN exit 7\n")


def ask_for_context_2(folder: Path) -> None:
    (folder / "ctx_test").write_text("2")


def make_repository(folder: Path) -> None:
    repository = folder / "upstream/modelrepo"
    repository.mkdir(parents=True)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-C", str(repository)]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], check=True)


def write_nothing(folder: Path) -> None:
    (folder / "scripts/dummy/run_multi.sh").write_text('#!/bin/bash\necho "step: ${0##*/}"\n')


def ask_for_one_gpu(folder: Path) -> None:
    cards = json.loads((folder / "models.json").read_text())
    changed = [{**card, "n_gpus": "1"} if card["name"] == "dummy_prof" else card for card in cards]
    (folder / "models.json").write_text(json.dumps(changed))


def name_the_batch(folder: Path) -> None:
    (folder / "batch.json").write_text(json.dumps([{"model_name": "dummy", "build_new": True}]))


TOOL_A, TOOL_B = ({"name": f"test_tools_{letter}"} for letter in "AB")
ENV2 = {
    "docker_env_vars": {"FOO": "bar baz"},
    "docker_mounts": {"/data": "/tmp"},  # noqa: S108
    "docker_gpus": "1",
    "docker_cpus": "0-3, 8",
    "docker_build_arg": {"BASE_DOCKER": BASE_IMAGE},
    "model_args": "--over ride",
}
PREPOST = {
    "pre_scripts": [{"path": "scripts/common/pre_scripts/pre_test.sh", "args": "1"}],
    "post_scripts": [{"path": "scripts/common/post_scripts/post_test.sh"}],
    "encapsulate_script": "bash -x",
}
SEQUENCE = ("x_args", "x_fail", "dummy", "dummy_multi", "dummy")
REPORTS = (("report", "to-html", "--csv-file-path", "perf.csv"), ("report", "to-email"))
SECRET = (("MAD_SECRETS_HFTOKEN", "token1"),)
CUDA = "nvidia/cuda:12.1.1-cudnn8-devel-ubuntu20.04"
MY_BASE = "my/base:1"
RUN_BUILT = ("run", "-m", "build_manifest.json")

SCENARIOS = (
    # one card each
    of_card("dummy_multi"),
    of_card("dummy_data_local"),
    of_card("dummy_data_local_fail"),
    of_card("dummy_gpubind", FAILED),
    of_card("dummy_prof", FAILED, versions="v2"),
    of_card("dummy_prof", FAILED, versions="v1", prepare=ask_for_one_gpu),
    of_card("dummy_skip_gpu_arch"),
    of_card("dummy_superset", FAILED, versions="v2"),
    of_card("dummy_torchrun_helper", FAILED, versions="v2"),
    of_card("x_dir"),
    of_card("x_err", FAILED),
    of_card("x_fail", FAILED),
    of_card("x_multi_allblank", FAILED),
    of_card("x_multi_blank"),
    of_card("x_multi_missing", FAILED),
    of_card("x_multi_nocopy"),
    of_card("x_multi_nometric", FAILED),
    of_card("x_multi_override"),
    of_card("x_noperf", FAILED),
    of_card("x_perf_then_fail", FAILED),
    of_card("x_two_perf"),
    # tags
    Scenario("x_args_foo-3_bar", (run("x_args:foo=3:bar"),)),
    Scenario("two", (run("x_fail", "dummy"),), (FAILED,), "v1"),
    Scenario("two2", (("run", "--tags", "x_fail", "--tags", "dummy"),), (FAILED,)),
    Scenario("comma", (run("x_fail,dummy"),), (FAILED,)),
    Scenario("dupargs", (run("x_args:a=1", "x_args:a=2", "x_args:a=1"),)),
    Scenario("unknown", (run("no_such_tag"),), (USAGE,)),
    Scenario("noargs", (("run",),), (USAGE,)),
    Scenario("disc", (("discover", "--tags", "dummy"),)),
    # context
    Scenario("ctxnone", (run("dummy_ctxtest"),)),
    Scenario("ctxadd", ((*run("dummy_ctxtest"), "--additional-context", "{'ctx_test': '1'}"),)),
    Scenario("ctxjson", ((*run("dummy_ctxtest"), "-c", '{"ctx_test": "1", "debug": false}'),)),
    Scenario("ctx2", (run("dummy_ctxtest"),), prepare=ask_for_context_2),
    Scenario("env2", ((*run("x_opts"), *context(**ENV2, SHM_SIZE="64G")),), (OK,), "v1", image=MY_BASE, env=SECRET),
    Scenario("env2", ((*run("x_opts"), *context(**ENV2)),), (OK,), "v2", image=MY_BASE, env=SECRET),
    Scenario(
        "dollar", ((*run("x_dollar"), *context(docker_env_vars={"WHERE": "incontainer"})),), env=(("WHERE", "onhost"),)
    ),
    Scenario("img", ((*run("dummy"), *context(MAD_CONTAINER_IMAGE=BASE_IMAGE)),), image="rocm/pytorch:latest"),
    Scenario("badctx", ((*run("dummy"), "-c", "{not a table"),), (USAGE,), "v2"),
    Scenario("badctx2", ((*run("dummy"), "-c", "[1, 2]"),), (USAGE,), "v2"),
    Scenario("badctx3", ((*run("dummy"), *context(docker_env_vars="FOO")),), (USAGE,), "v2"),
    # flags
    Scenario("timeout", ((*run("dummy_sleep"), "--timeout", "2"),), (FAILED,)),
    Scenario("t0", ((*run("dummy"), "--timeout", "0"),), versions="v2"),
    Scenario("tm", ((*run("dummy_timeout"), "--timeout", "-1"),), versions="v2"),
    Scenario("tm2", ((*run("dummy_timeout"), "--timeout", "7200"),), versions="v2"),
    Scenario("tm3", ((*run("dummy_timeout"), "--timeout", "100", "--live-output"),), versions="v2"),
    Scenario("tm4", ((*run("dummy_timeout"), "--timeout", "-2"),), (USAGE,), "v2"),
    Scenario("tm5", ((*run("dummy_timeout"), "--live"),), versions="v1"),
    Scenario("keepalive", ((*run("dummy"), "--keep-alive"),)),
    Scenario("keepdir", ((*run("dummy"), "--keep-model-dir"),)),
    Scenario("skiprun", ((*run("dummy"), "--skip-model-run"),)),
    Scenario("skipdis", ((*run("dummy_skip_gpu_arch"), "--disable-skip-gpu-arch"),)),
    Scenario("dep", (run("x_dep"),)),
    Scenario("out", ((*run("dummy_multi"), "-o", "sub/perf.csv"),), versions="v2", output="sub/perf.csv",
             prepare=lambda folder: (folder / "sub").mkdir()),  # fmt: skip
    Scenario("out2", ((*run("dummy_multi"), "--output", "other.csv"),), output="other.csv"),
    Scenario("manout", ((*run("dummy"), "--manifest-output", "other.json"),), versions="v2"),
    Scenario("cleanup", ((*run("dummy"), "--cleanup-perf"),), versions="v2"),
    # images
    Scenario("buildfail", (run("dummy"),), (BUILD_FAILED,), prepare=break_build),
    Scenario("nodocker", (run("x_nodocker"),), (FAILED,)),
    Scenario("nv1", (run("dummy"),), machine="nvidia", image=CUDA),
    Scenario("nv2", ((*run("dummy"), *context(gpu_vendor="NVIDIA")),), versions="v2", machine="nvidia", image=CUDA),
    Scenario("url", (run("x_url"),), prepare=make_repository),
    # tools and scripts
    Scenario("tools", ((*run("dummy"), *context(tools=[TOOL_A, TOOL_B])),)),
    Scenario("accum", ((*run("dummy", "dummy2", "dummy3"), *context(tools=[TOOL_A])),)),
    Scenario("prepost", ((*run("dummy"), *context(**PREPOST)),), (FAILED,), "v1"),
    # several runs in one folder
    Scenario("seq", tuple(map(run, SEQUENCE)), (OK, FAILED, OK, OK, OK), "v1"),
    Scenario("seq", (*map(run, SEQUENCE), *REPORTS), (OK, FAILED, OK, OK, OK, OK, OK), "v2"),
    Scenario("stale", (run("dummy_multi"), run("dummy_multi")), (OK, FAILED), between=write_nothing),
    Scenario("runner", (run("dummy", "x_dir"),), versions="v2"),
    # build first
    Scenario("two", (build("dummy,dummy_multi", "-s", "bs.json"), (*RUN_BUILT, "-s", "rs.json")), (OK, OK), "v2"),
    Scenario("envprec", (
        build("dummy", *context(docker_env_vars={"AAA": "build"})),
        (*RUN_BUILT, *context(docker_env_vars={"AAA": "run", "BBB": "run"})),
    ), (OK, OK), "v2"),
    Scenario("envprec2", (build("dummy", *context(docker_env_vars={"AAA": "build"})), RUN_BUILT), (OK, OK), "v2"),
    Scenario("arch", (build("dummy", "--target-archs", "gfx942,gfx90a"), RUN_BUILT), (OK, OK), "v2"),
    Scenario("batch", (("build", "--batch-manifest", "batch.json"),), (OK,), "v2", prepare=name_the_batch),
    Scenario("useimg", (build("dummy", "--use-image", BASE_IMAGE), RUN_BUILT), (OK, OK), "v2", image="foo/bar:1"),
)  # fmt: skip

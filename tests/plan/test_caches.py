"""Whose caches of compiled kernels a run has, and which it gets in a study."""

from __future__ import annotations

from pathlib import Path

from madlite.model import EngineOptions, Machine, Mount, Study, Traits
from madlite.plan.caches import cache_folders, cache_state, with_caches
from tests.factories import HOST, make_plan
from tests.rows import each_row

WARM = Study(id="s", kind="repeat", index=1, count=2, caches="warm")


@each_row(
    ("changes", "state"),
    [
        ({}, "cold"),
        ({"traits": HOST}, "user"),
        ({"traits": Traits(local=False)}, ""),
        ({"mounts": (Mount(source="/data/hf", target="/root/.cache/huggingface"),)}, "cold"),
        ({"mounts": (Mount(source="/home/me/.cache", target="/root/.cache"),)}, "user"),
        ({"mounts": (Mount(source="/x", target="/root/.cache/miopen/3.4"),)}, "user"),
        ({"env": {"TRITON_CACHE_DIR": "/myworkspace/triton"}}, "user"),
        ({"env": {"TRITON_CACHE_DIR": "/tmp/triton"}}, "cold"),
        ({"env": {"HIPBLASLT_TUNING_FILE": "/tmp/tuned.txt"}}, "user"),
        ({"engine_options": EngineOptions(extra="--shm-size 16G")}, "cold"),
        ({"engine_options": EngineOptions(extra="--shm-size 16G -v /home/me:/root")}, ""),
        ({"engine_options": EngineOptions(extra="--mount type=bind,source=/a,target=/root")}, ""),
        ({"study": WARM}, "warm"),
    ],
)
def test_what_a_run_finds_is_said_only_where_it_is_known(tmp_path: Path, changes, state):
    assert cache_state(make_plan(tmp_path, **changes)) == state


def test_a_container_has_its_study_s_caches_at_one_place_and_a_process_of_the_host_in_the_folder(tmp_path: Path):
    folder = tmp_path / "caches"
    inside = with_caches(make_plan(tmp_path, study=WARM), folder)
    assert inside.env["TORCHINDUCTOR_CACHE_DIR"] == "/madlite_caches/inductor"
    assert inside.mounts == (Mount(source=str(folder), target="/madlite_caches"),)
    outside = with_caches(make_plan(tmp_path, study=WARM, traits=HOST), folder)
    assert outside.env["TORCHINDUCTOR_CACHE_DIR"] == f"{folder}/inductor" and not outside.mounts
    assert outside.origins["env.TRITON_CACHE_DIR"] == "repeat"
    assert [cache_state(one) for one in (inside, outside)] == ["warm", "warm"]


def test_caches_are_each_vendor_s_and_not_known_on_another_machine(tmp_path: Path):
    # each vendor has its own caches
    amd = with_caches(make_plan(tmp_path, study=WARM, machine=Machine(vendor="AMD")), tmp_path).env
    nvidia = with_caches(make_plan(tmp_path, study=WARM, machine=Machine(vendor="NVIDIA")), tmp_path).env
    assert amd["MIOPEN_USER_DB_PATH"] == "/madlite_caches/miopen" and "CUDA_CACHE_PATH" not in amd
    assert nvidia["CUDA_CACHE_PATH"] == "/madlite_caches/cuda" and "MIOPEN_USER_DB_PATH" not in nvidia
    assert "tunableop" in cache_folders(make_plan(tmp_path)), "a file's folder is there, not a folder of its name"
    plan = with_caches(make_plan(tmp_path, study=WARM, traits=Traits(local=False)), tmp_path)
    assert cache_state(plan) == "" and not plan.mounts and not plan.env


def test_a_cache_that_the_user_names_stays_and_the_run_says_so(tmp_path: Path):
    own = {"env": {"MIOPEN_USER_DB_PATH": "/root/db"}, "machine": Machine(vendor="AMD"), "study": WARM}
    plan = with_caches(make_plan(tmp_path, **own, origins={"env.MIOPEN_USER_DB_PATH": "--set"}), tmp_path)
    assert plan.env["MIOPEN_USER_DB_PATH"] == "/root/db" and cache_state(plan) == "user"
    assert plan.notes == ("not the study's own: the cache that MIOPEN_USER_DB_PATH (--set) names",)
    inherited = make_plan(tmp_path, **own, origins={"env.MIOPEN_USER_DB_PATH": "environment"})
    assert with_caches(inherited, tmp_path).env["MIOPEN_USER_DB_PATH"] == "/madlite_caches/miopen"

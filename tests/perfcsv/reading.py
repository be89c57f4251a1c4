"""What the tests of this room share: rows to append, and the file as any CSV reader sees it."""

from __future__ import annotations

import csv
from pathlib import Path

DATA = Path(__file__).with_name("data")
V2 = (
    "model,n_gpus,nnodes,gpus_per_node,training_precision,pipeline,args,tags,docker_file,base_docker,docker_sha,"
    "docker_image,git_commit,machine_name,deployment_type,launcher,gpu_architecture,performance,metric,"
    "relative_change,status,build_duration,test_duration,dataname,data_provider_type,data_size,"
    "data_download_duration,build_number,additional_docker_run_options"
)
V1 = (
    "model,n_gpus,training_precision,pipeline,args,tags,docker_file,base_docker,docker_sha,docker_image,git_commit,"
    "machine_name,gpu_architecture,performance,metric,relative_change,status,build_duration,test_duration,dataname,"
    "data_provider_type,data_size,data_download_duration,build_number,additional_docker_run_options"
)
SMALL = "model,status,performance,metric"


def row(**cells: str) -> dict[str, str]:
    return cells


def records(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as text:
        return list(csv.reader(text))


def table(path: Path) -> list[dict[str, str]]:
    header, *rest = records(path)
    assert [len(cells) for cells in rest] == [len(header)] * len(rest)
    return [dict(zip(header, cells, strict=True)) for cells in rest]


def models(path: Path) -> list[str]:
    return [cells["model"] for cells in table(path)]

"""A cluster file made of what a cluster's own commands print, as those of several sites do."""

from __future__ import annotations

from pathlib import Path

import pytest

from madlite.cli.main import call
from madlite.jobs.file import read_clusters

pytestmark = pytest.mark.host


@pytest.fixture
def asked(tmp_path: Path, monkeypatch):
    """Return the clusters of the file that is made where sinfo prints a line, and the cluster has a name."""
    (tmp_path / "bin").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")

    def ask(line: str, name: str = "lab", *words: str):
        for command, text in (("sinfo", line), ("scontrol", f"ClusterName             = {name}")):
            file = tmp_path / "bin" / command
            file.write_text(f"#!/bin/sh\ncat <<'E'\n{text}\nE\n")
            file.chmod(0o755)
        assert call(["cluster", "init", *words]) == 0
        return read_clusters(tmp_path / "cluster.toml", ("slurm", "kubernetes"))

    return ask


@pytest.mark.parametrize(
    ("gres", "machine", "asks"),
    [
        ("gpu:mi300x:8(S:0-1)", "8xMI300X", "gpu:mi300x:8"),
        ("gpu:amd_instinct_mi300x_oam:8(S:0-1)", "8xMI300X", "gpu:amd_instinct_mi300x_oam:8"),
        ("gpu:nvidia_h100_80gb_hbm3:4(S:0),nvme:2", "4xH100", "gpu:nvidia_h100_80gb_hbm3:4"),
        ("gpu:8", "", ""),
        ("(null)", "", ""),
    ],
)
def test_gpus_have_the_names_that_sites_give_them(asked, gres, machine, asks):
    (cluster,) = asked(f"batch*|4|{gres}|1-00:00:00").values()
    assert (cluster.machine, cluster.slurm.gres) == (machine, asks)


def test_the_gpus_that_sinfo_does_not_name_are_the_user_s_to_name(asked):
    (cluster,) = asked("batch*|4|gpu:8|infinite", "lab", "--gpu", "MI325X").values()
    assert (cluster.machine, cluster.slurm.gres) == ("8xMI325X", "")


def test_a_cluster_of_a_name_with_a_dot_is_one_table(asked):
    assert [*asked("batch*|4|(null)|30:00", "hpc.example.org")] == ["hpc.example.org"]

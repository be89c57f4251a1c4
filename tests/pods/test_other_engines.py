"""Another engine beside Kubernetes and Slurm is a runtime of a plugin: Flux by its command, TrainJob by its YAML."""

from __future__ import annotations

import importlib.metadata
import json
import os

import pytest
import yaml

from madlite import CommandRuntime, ImageUsed, Traits
from madlite.cli.main import call
from tests.backends.test_plugins import Entry, module
from tests.csv_rows import perf_rows

pytestmark = pytest.mark.host
FLUX = """#!/bin/sh
echo "$@" >> {asked}
[ "$1" = run ] || exit 2
shift 3
exec "$@"
"""


class Flux(CommandRuntime):
    """Each action is `flux run` of its command."""

    name = "flux"
    traits = Traits(local=False, sees_processes=False)

    def supports(self, place):
        return place.where == self.name

    def command(self, plan, argv, cwd):
        return ["flux", "run", f"--nodes={plan.place.nodes}", f"--gpus-per-task={plan.place.gpus_per_node}", *argv]


class TrainJob(Flux):
    """What a dry run prints is the object of the Kubeflow trainer."""

    name = "trainjob"
    traits = Traits(containerised=True, local=False, sees_processes=False, manifests=True)

    def prepare(self, plan, say):
        return ImageUsed(ref=plan.image.ref)

    def manifest(self, plan, files):
        trainer = {"image": plan.image.ref, "numNodes": plan.place.nodes, "command": [*plan.actions[-1].argv]}
        spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}
        return yaml.safe_dump({"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "spec": spec})


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    (tmp_path / "flux").write_text(FLUX.format(asked=tmp_path / "asked"))
    (tmp_path / "flux").chmod(0o755)
    (tmp_path / "run.sh").write_text("echo performance: 12.5 tok\n")
    card = {"name": "a", "scripts": "run.sh", "image": "rocm/a:1", "n_gpus": "-1", "args": "", "tags": []}
    (tmp_path / "models.json").write_text(json.dumps([card]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    entries = importlib.metadata.entry_points
    plugin = Entry("engines", module(madlite_runtimes=lambda: [Flux(), TrainJob()]))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **named: [*entries(**named), plugin])
    return tmp_path


def test_a_card_runs_by_another_engine_s_command_and_its_row_says_so(checkout, capfd):
    assert call(["run", "--tags", "a", "--runtime", "flux", "--output", "perf.csv"]) == 0, capfd.readouterr()
    (row,) = perf_rows(checkout)
    assert (row["performance"], row["deployment_type"]) == ("12.5", "flux")
    assert "run --nodes=1" in (checkout / "asked").read_text()


def test_a_dry_run_prints_what_the_other_engine_takes(checkout, capfd):
    assert call(["run", "--tags", "a", "--runtime", "trainjob", "--dry-run"]) == 0, capfd.readouterr()
    (job,) = [one for one in yaml.safe_load_all(capfd.readouterr().out) if one]
    assert (job["kind"], job["spec"]["trainer"]["image"]) == ("TrainJob", "rocm/a:1")
    assert not (checkout / "madlite_runs").exists() and not (checkout / "asked").exists()

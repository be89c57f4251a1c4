"""The GPUs of an allocation's nodes, of which some have others, or fewer, than the first: who uses and samples which."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys

import pytest

from tests.cli.test_scaling import ELSEWHERE
from tests.engine.test_slurm_runtime import Site, made_up_machine
from tests.machine.stand_in import Bench

pytestmark = pytest.mark.engine


@pytest.fixture
def site(tmp_path, slurm) -> Site:
    return Site(tmp_path, slurm)


@pytest.fixture
def bench(tmp_path) -> Bench:
    return made_up_machine(tmp_path / "machine", 8)


def beside_another_job(site: Site, bench: Bench, node: str, card: dict, *words: str, **exports: str) -> None:
    """Run a card that needs two GPUs on n1 and n2, while another job has the first two of one of them."""
    (found,) = json.loads((site.folder / "models.json").read_text())
    (site.folder / "models.json").write_text(json.dumps([{**found, "n_gpus": "2", **card}]))
    exports |= {"PYTHONPATH": os.getcwd(), "PATH": f"{bench.bin}:{site.environ['PATH']}"}
    lines = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in exports.items())
    command = shlex.join([sys.executable, "-c", ELSEWHERE, str(bench.root), "run", "--tags", "a", *words])
    script, output, blocker = (site.folder / name for name in ("job.sh", "job.out", "blocker.sh"))
    script.write_text(f"#!/bin/bash\n{lines}exec {command}\n")
    blocker.write_text("#!/bin/bash\nexec sleep 600\n")
    other = site.slurm.batch(blocker, f"-w{node}", "--gpus-per-node=2", "--output=/dev/null")
    try:
        site.slurm.wait_for(other, "RUNNING")
        where = ("-wn1,n2", "-N2", "--gpus-per-node=2", f"--chdir={site.folder}", f"--output={output}")
        job = site.slurm.batch(script, *where)
        site.slurm.wait_for(job, "COMPLETED", "FAILED")
    finally:
        site.slurm.run("scancel", other)
    assert site.slurm.job(job)["JobState"] == "COMPLETED", output.read_text()


def test_each_container_has_the_gpus_of_its_own_node(site, bench, engine, base_image, tmp_path):
    """The first node's first GPUs are another job's, so that Slurm gives others there than on the second."""
    asked = tmp_path / "asked"  # docker itself has no such devices here
    docker = shutil.which("docker")
    bench.script(
        "docker",
        f"""count=$#
while [ $count -gt 0 ]; do
  word=$1 count=$((count - 1))
  shift
  case $word in
    --device=*) echo "$SLURMD_NODENAME $word" >>{asked} ;;
    *) set -- "$@" "$word" ;;
  esac
done
exec {docker} "$@\"""",
    )
    exports = {"DOCKER_HOST": engine, "MADLITE_CONTAINER": "docker"}
    beside_another_job(site, bench, "n1", {"runtimes": []}, "--image", base_image, **exports)
    found = {tuple(line.split()) for line in asked.read_text().splitlines() if "renderD" in line}
    of_nodes = {"n1": (130, 131), "n2": (128, 129)}
    assert found == {(node, f"--device=/dev/dri/renderD{n}") for node, both in of_nodes.items() for n in both}


METRIC = """if [ "$1" = metric ]; then
  [ "$SLURMD_NODENAME" = n2 ] && slow="0 1" || slow="2 3 4 5 6 7"
  for gpu in 0 1 2 3 4 5 6 7; do
    case " $slow " in *" $gpu "*) mhz=900 ;; *) mhz=2100 ;; esac
    printf '%s{"gpu": %s, "clock": {"gfx_0": {"clk": %s}}}' "$before" $gpu $mhz
    before=,
  done | sed 's/.*/[&]/'
  echo >>FOLDER/asked.$SLURMD_NODENAME
  exit
fi
"""


def test_each_node_is_sampled_on_its_own_gpus(site, bench):
    """The second node's first GPUs are another job's, which is slow: the run has others there than on the first."""
    tool = bench.bin / "amd-smi"  # reports all eight GPUs of a node, as it does where devices are not hidden
    tool.write_text(tool.read_text().replace("\n", f"\n{METRIC.replace('FOLDER', str(site.folder))}", 1))
    script = """until [ "$(cat "$FOLDER/asked.$SLURMD_NODENAME" 2>/dev/null | wc -l)" -ge 3 ]; do sleep 0.1; done
if [ "${NODE_RANK:-0}" = 0 ]; then echo "performance: 12.5 tok"; fi
"""
    (site.folder / "scripts/a/run.sh").write_text(script.replace("$FOLDER", str(site.folder)))
    beside_another_job(site, bench, "n2", {})
    record = site.record()
    assert record["place"]["gpu_ids"] == [0, 1]
    assert [(one["name"], one["clock_mhz"], one.get("slow", "")) for one in record["nodes"]] == [
        ("n1", 2100, ""),
        ("n2", 2100, ""),
    ]

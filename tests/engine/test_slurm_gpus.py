"""The GPUs of an allocation's nodes, some of which have others, or fewer, than the first one."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.engine.test_slurm_runtime import Site, made_up_machine
from tests.machine.elsewhere import ELSEWHERE
from tests.machine.stand_in import Bench

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("gpus_of_nodes")]


@pytest.fixture
def site(tmp_path, slurm) -> Site:
    return Site(tmp_path, slurm)


@pytest.fixture
def bench(tmp_path) -> Bench:
    return made_up_machine(tmp_path / "machine", 8)


TWO_EACH = ("--gpus-per-node=2",)


def beside_another_job(
    site: Site,
    bench: Bench,
    other: tuple[str, int],
    card: dict,
    *words: str,
    gpus: tuple[str, ...] = TWO_EACH,
    **exports: str,
) -> tuple[str, str]:
    """Run a card, which needs two GPUs, on n1 and n2 while another job has the first GPUs of one of them, so many.

    Return the state in which the job ended, and its output.
    """
    (found,) = json.loads((site.folder / "models.json").read_text())
    (site.folder / "models.json").write_text(json.dumps([{**found, "n_gpus": "2", **card}]))
    exports |= {"PYTHONPATH": os.getcwd(), "PATH": f"{bench.bin}:{site.environ['PATH']}"}
    lines = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in exports.items())
    command = shlex.join([sys.executable, "-c", ELSEWHERE, str(bench.root), "run", "--tags", "a", *words])
    script, output, blocker = (site.folder / name for name in ("job.sh", "job.out", "blocker.sh"))
    script.write_text(f"#!/bin/bash\n{lines}exec {command}\n")
    blocker.write_text("#!/bin/bash\nexec sleep 600\n")
    node, count = other
    blocked = site.slurm.batch(blocker, f"-w{node}", f"--gpus-per-node={count}", "--output=/dev/null")
    try:
        site.slurm.wait_for(blocked, "RUNNING")
        job = site.slurm.batch(
            script, "-wn1,n2", "-N2", *gpus, f"--chdir={site.folder}", f"--output={output}", "--time=5"
        )
        state = site.slurm.wait_for(job, "COMPLETED", "FAILED", "TIMEOUT")["JobState"]
    finally:
        site.slurm.run("scancel", blocked)
    return state, output.read_text()


def note_devices(bench: Bench, asked: Path) -> None:
    """Have a docker that notes the devices it is asked for in place of handing them on: there are none here."""
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
exec {shutil.which("docker")} "$@\"""",
    )


def devices(asked: Path) -> dict[str, list[int]]:
    """Return the render nodes that were asked for, by node."""
    found: dict[str, list[int]] = {}
    for node, number in sorted({*re.findall(r"(n\d) --device=/dev/dri/renderD(\d+)", asked.read_text())}):
        found.setdefault(node, []).append(int(number))
    return found


def test_each_container_has_the_gpus_of_its_own_node(site, bench, engine, base_image, tmp_path):
    """The first node's first GPUs are another job's, so that Slurm gives others there than on the second."""
    note_devices(bench, tmp_path / "asked")
    exports = {"DOCKER_HOST": engine, "MADLITE_CONTAINER": "docker"}
    state, out = beside_another_job(site, bench, ("n1", 2), {"runtimes": []}, "--image", base_image, **exports)
    assert state == "COMPLETED", out
    assert devices(tmp_path / "asked") == {"n1": [130, 131], "n2": [128, 129]}


FOUR_OF_TWO = ("--gpus=4",)


def test_a_node_with_fewer_gpus_than_the_run_uses_is_named_before_anything_starts(site, bench):
    state, out = beside_another_job(site, bench, ("n2", 7), {"n_gpus": "3"}, gpus=FOUR_OF_TWO)
    assert state == "FAILED", out
    record = site.record()
    assert re.fullmatch(
        r"the run uses 3 GPUs of each node, and node n2 has 1 in allocation \d+; --nodes 1 or --set n_gpus=1",
        record["reason"],
    ), record["reason"]
    assert (record["cause"], record["node_codes"]) == ("too_few_gpus", [])
    assert "meets at" not in site.log() and not (site.run / "nodes").exists()


def test_uneven_nodes_each_have_their_own_gpus_for_what_all_of_them_can_give(site, bench, engine, base_image, tmp_path):
    note_devices(bench, tmp_path / "asked")
    exports = {"DOCKER_HOST": engine, "MADLITE_CONTAINER": "docker"}
    words = ("--image", base_image)
    card = {"runtimes": [], "n_gpus": "1"}
    state, out = beside_another_job(site, bench, ("n2", 7), card, *words, gpus=FOUR_OF_TWO, **exports)
    assert state == "COMPLETED", out
    assert devices(tmp_path / "asked") == {"n1": [128], "n2": [135]}


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
    state, out = beside_another_job(site, bench, ("n2", 2), {})
    assert state == "COMPLETED", out
    record = site.record()
    assert record["place"]["gpu_ids"] == [0, 1]
    assert [(one["name"], one["clock_mhz"], one.get("slow", "")) for one in record["nodes"]] == [
        ("n1", 2100, ""),
        ("n2", 2100, ""),
    ]

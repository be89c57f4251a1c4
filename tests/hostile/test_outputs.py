"""What a workload leaves where a framework's reader looks: links, pipes, devices, giants, in files and folders."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from madlite_plugins.flux.summary import read_summaries
from madlite_plugins.hf.state import read_state
from madlite_plugins.torchtitan.structured import structured_steps
from madlite_plugins.torchtune.step_lines import read_disk_log
from tests.test_files import plant

READERS = {
    "flux": ("outputs/runs/1/runs_summary.csv", lambda outputs: read_summaries(outputs, 0.0)),
    "hf": ("out/trainer_state.json", lambda outputs: read_state(outputs, None)),
    "torchtitan": ("out/structured_logs/training.global_rank_0.1.jsonl", lambda outputs: structured_steps(outputs, 1)),
    "torchtune": ("out/log_1.txt", lambda outputs: read_disk_log(outputs, "log_1.txt")),
}
TEXTS = {
    "flux": "run_id,status,avg_fps_gpu\n1,success,5.0\n",
    "hf": '{"log_history": [{"loss": 1.5, "step": 5}]}',
    "torchtitan": '{"log_type_name": "step_end", "step": 7, "value": 250}\n',
    "torchtune": "Step 3 | loss:6.9 lr:2e-05 tokens_per_second_per_gpu:942.6 \n",
}


@pytest.fixture(params=READERS)
def reader(request, tmp_path: Path):
    """A reader, the folder of its run, and the place of the file that it looks for."""
    name, read = READERS[request.param]
    outputs = tmp_path / "work"
    (outputs / name).parent.mkdir(parents=True)
    return read, outputs, outputs / name, TEXTS[request.param]


def test_an_honest_file_is_read(reader):
    read, outputs, place, text = reader
    place.write_text(text)
    assert list(read(outputs))


@pytest.mark.parametrize(
    "kind", ["pipe", "zero", "sparse", "folder", "circle", "environ", "host", "folder of the host"]
)
def test_what_is_no_file_of_the_run_tells_nothing_and_costs_nothing(reader, tmp_path, kind):
    read, outputs, place, text = reader
    hosts = tmp_path / "hosts" / place.name
    hosts.parent.mkdir()
    hosts.write_text(text)
    if kind == "environ":
        place.symlink_to("/proc/self/environ")
    elif kind == "host":
        place.symlink_to(hosts)
    elif kind == "folder of the host":
        place.parent.rmdir()
        place.parent.symlink_to(hosts.parent)
    else:
        plant(place, kind)
    tracemalloc.start()
    try:
        assert list(read(outputs)) == []
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.host
def test_a_giant_of_less_than_the_limit_costs_no_more_than_a_piece(tmp_path):
    """Lines of a file of a gigabyte come one by one; one that never ends comes in pieces."""
    place = tmp_path / "structured_logs/training.global_rank_0.1.jsonl"
    place.parent.mkdir()
    with place.open("wb") as file:
        file.write(b'{"log_type_name": "step_end", "step": 7, "value": 250}\n')
        file.truncate(200 << 20)
    tracemalloc.start()
    try:
        assert [step.n for step in structured_steps(tmp_path, 1)] == [7]
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_a_link_to_all_of_the_machine_is_not_searched(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "hosts/a").mkdir(parents=True)
    (tmp_path / "hosts/a/log_1.txt").write_text(TEXTS["torchtune"])
    (tmp_path / "work/all").symlink_to(tmp_path / "hosts")
    assert list(read_disk_log(tmp_path / "work", "log_1.txt")) == []

"""What the scheduler is told of plans: what they must not run beside, how long they took, where they may run."""

from __future__ import annotations

import threading
from pathlib import Path

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.batch.gpu_allocator import Job
from madlite.batch.scheduler import Allocation, bound_plan, known_durations, make_jobs, with_own_port
from madlite.model import Action, Card, Gpu, Image, Machine, Place, ResultRule, Status, Variant
from madlite.model import Result as RunResult
from madlite.plan.submission import PlannedRun
from madlite.platforms.docker.runtime import DockerRuntime
from madlite.store.folder import new_run_id
from madlite.store.record import make_record, record_json
from tests.factories import HOST, make_plan
from tests.rows import each_row
from tests.waiting import wait_until

EIGHT = Machine(
    vendor="AMD", gpus=tuple(Gpu(index=n, bus=f"0000:0{n + 1}:00.0", render_minor=128 + n) for n in range(8))
)


def planned(folder: Path, name: str = "a", **changes: object) -> PlannedRun:
    card = Card(name=name, root=folder, source="a test", scripts=str(changes.pop("scripts", "")))
    plan = make_plan(folder, id=new_run_id(name), card=card, **changes)
    return PlannedRun(
        plan=plan, backends=(), files=(), runtime=None, gpus=tuple(gpu.index for gpu in plan.machine.gpus)
    )


def keys_of(*runs: PlannedRun) -> list[set[str]]:
    return [set(job.keys) for job in make_jobs(runs, Plugins(), {}, 0, exclusive=False)]


@each_row(
    ("script", "keys"),
    [
        ("torchrun --master_port 29511 x.py", {"port 29511"}),
        ("torchrun --master-port=29511 x.py", {"port 29511"}),
        ("export MASTER_PORT=1234", {"port 1234"}),
        ('accelerate launch --main_process_port "29600" x.py', {"port 29600"}),
        ("export MASTER_PORT=${MASTER_PORT:-29500}", set()),
        ("torchrun --master_port $PORT", set()),
    ],
)
def test_a_port_that_a_script_spells_out_is_found(tmp_path, script, keys):
    (tmp_path / "run.sh").write_text(script)
    assert keys_of(planned(tmp_path, scripts="run.sh")) == [keys]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/run.sh").write_text(script)
    assert keys_of(planned(tmp_path, scripts="folder")) == [keys]


def test_arguments_environment_and_settings_can_have_a_port_too(tmp_path):
    assert keys_of(
        planned(tmp_path, args="--master_port 1111"),
        planned(tmp_path, env={"MASTER_PORT": "2222"}),
        planned(tmp_path, settings={"master_port": "3333"}),
        planned(tmp_path, env={"MAD_MULTI_NODE_RUNNER": "torchrun --master_port 6006"}),
    ) == [{"port 1111"}, {"port 2222"}, {"port 3333"}, {"port 6006"}]


def test_a_shared_results_file_and_an_image_of_two_dockerfiles_are_keys(tmp_path):
    rule = ResultRule(kind="multiple_results", file="perf_x.csv")
    one, two, three = (
        planned(tmp_path, image=Image(ref="ci-x", dockerfile=tmp_path / name), result_rule=rule) for name in "abb"
    )
    assert keys_of(two, three) == [{"file perf_x.csv"}] * 2
    assert keys_of(one, two) == [{"file perf_x.csv", "image ci-x"}] * 2
    assert [job.keys for job in make_jobs([one, two], Plugins(), {}, 1, exclusive=False)] == [frozenset()] * 2


def test_only_what_runs_here_on_gpus_needs_some(tmp_path):
    gpus = {"machine": EIGHT, "place": Place(gpus_per_node=2, gpu_ids=(0, 1))}
    runs = [
        planned(tmp_path, **gpus),
        planned(tmp_path, **gpus, skip_model_run=True),
        planned(tmp_path, **{**gpus, "machine": replace(EIGHT, pretended=True)}),
        planned(tmp_path),
        replace(planned(tmp_path, **gpus), gpus=()),
    ]
    jobs = make_jobs(runs, Plugins(), {}, 0, exclusive=True)
    assert [job.gpus for job in jobs] == [2, 0, 0, 0, 2] and all(job.exclusive for job in jobs)
    assert jobs[0].allowed == tuple(range(8)) and jobs[4].allowed == (0, 1), "a pinned one has those of its plan"


def test_a_run_gets_the_devices_or_the_variables_of_its_gpus(tmp_path):
    place = Place(gpus_per_node=2, gpu_ids=(0, 1))
    devices = ("/dev/fuse", "/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129", "/dev/infiniband")
    start = Allocation(job=Job(position=0, run_id="r", gpus=2, allowed=tuple(range(8))), leased=(5, 7))
    inside = bound_plan(planned(tmp_path, machine=EIGHT, place=place, devices=devices).plan, start, {}, numa=False)
    assert inside.place.gpu_ids == (5, 7) and "HIP_VISIBLE_DEVICES" not in inside.env
    assert set(inside.devices) == {*devices[:2], "/dev/dri/renderD133", "/dev/dri/renderD135", "/dev/infiniband"}
    values = {"traits": HOST, "env": {"HIP_VISIBLE_DEVICES": "0,1", "X": "y"}}
    values["origins"] = {"env.HIP_VISIBLE_DEVICES": "runtime host"}
    outside = bound_plan(planned(tmp_path, machine=EIGHT, place=place, **values).plan, start, {}, numa=False)
    assert outside.env == {"HIP_VISIBLE_DEVICES": "5,7", "X": "y"} and outside.devices == ()


def test_a_run_with_some_of_nvidia_s_gpus_counts_them_as_the_tools_do_that_listed_them(tmp_path):
    machine = replace(EIGHT, vendor="NVIDIA")
    values = {"traits": HOST, "machine": machine, "place": Place(gpus_per_node=1, gpu_ids=(0,))}
    start = Allocation(job=Job(position=0, run_id="r", gpus=1, allowed=tuple(range(8))), leased=(5,))
    bound = bound_plan(planned(tmp_path, **values).plan, start, {}, numa=False)
    assert bound.env == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "5"}
    every = Allocation(job=Job(position=0, run_id="r", gpus=8, allowed=tuple(range(8))), leased=tuple(range(8)))
    assert bound_plan(bound, every, {}, numa=False).env == {}, "all of them are those of any order"


def test_where_the_machine_does_not_name_the_numa_node_a_note_says_so(tmp_path):
    start = Allocation(job=Job(position=0, run_id="r", gpus=1, allowed=(0,)), leased=(0,))
    plan = planned(tmp_path, machine=EIGHT, place=Place(gpus_per_node=1, gpu_ids=(0,))).plan
    bound = bound_plan(plan, start, {}, numa=True)
    assert bound.engine_options == plan.engine_options and "does not say which NUMA node" in bound.notes[-1]
    assert bound_plan(bound, start, {}, numa=True).notes == bound.notes, "of a run that is tried again, too"


def test_each_run_has_a_port_of_its_own_unless_something_decides_it(tmp_path):
    taken: set[str] = set()
    one, two = (with_own_port(planned(tmp_path).plan, taken) for _ in range(2))
    assert one.env["MASTER_PORT"] == one.env["PET_MASTER_PORT"] != two.env["MASTER_PORT"]
    assert one.origins["env.MASTER_PORT"] == "--parallel" and taken == {one.env["MASTER_PORT"], two.env["MASTER_PORT"]}
    again = with_own_port(one, taken)
    assert again.env["MASTER_PORT"] == again.env["PET_MASTER_PORT"] not in {one.env["MASTER_PORT"]}, "perhaps in use"
    own = planned(tmp_path, env={"MASTER_PORT": "29500"}).plan
    assert with_own_port(own, taken) == own
    part = planned(tmp_path, place=Place(nodes=2)).plan
    assert with_own_port(part, taken) == part, "of several nodes each has to have the same one"


def test_durations_are_of_the_newest_successful_run_of_the_card_of_the_same_kind_first(tmp_path):
    def recorded(name: str, seconds: float, status: Status = Status.SUCCESS, precision: str = "BF16") -> None:
        variant = Variant(model="m", precision=precision)
        plan = make_plan(
            tmp_path, id=new_run_id(name), card=Card(name=name, root=tmp_path, source="t"), variant=variant
        )
        result = RunResult(plan_id=plan.id, status=status, durations_s={"total": seconds})
        (plan.folder / "record.json").write_text(record_json(make_record(plan, result, None)))

    recorded("a", 50)
    recorded("a", 70, precision="FP8")
    recorded("a", 3, status=Status.FAILURE)
    recorded("b", 9)
    recorded("b", 5, status=Status.FAILURE)
    runs = [
        planned(tmp_path, "a", variant=Variant(model="m", precision="BF16")),
        planned(tmp_path, "a", variant=Variant(model="m", precision="FP4")),
        planned(tmp_path, "b"),
        planned(tmp_path, "c"),
    ]
    found = known_durations(runs)
    assert found[runs[0].plan.id] == 50 and found[runs[1].plan.id] in (50, 70) and found[runs[2].plan.id] == 9
    assert runs[3].plan.id not in found and known_durations([]) == {}


def test_one_run_at_a_time_prepares_an_image():
    runtime, said, order = DockerRuntime({}), [], []
    inside, go = threading.Event(), threading.Event()

    def prepare(name: str, ref: str) -> None:
        with runtime._alone(ref, said.append):
            order.append(name)
            if name == "first":
                inside.set()
                go.wait(60)

    threads = [threading.Thread(target=prepare, args=("first", "x"))]
    threads[0].start()
    inside.wait(60)
    prepare("other image", "y")
    threads.append(threading.Thread(target=prepare, args=("second", "x")))
    threads[1].start()
    wait_until(lambda: said)
    assert order == ["first", "other image"] and said == ["waiting for another run that prepares x"]
    go.set()
    for thread in threads:
        thread.join(60)
    assert order[-1] == "second"


def test_actions_of_a_bound_plan_are_those_of_the_plan(tmp_path):
    one = planned(tmp_path, actions=(Action(kind="run", argv=("true",)),))
    start = Allocation(job=Job(position=0, run_id="r"))
    assert bound_plan(one.plan, start, {}, numa=False) == one.plan


def test_options_about_gpus_say_so_where_they_do_nothing(tmp_path):
    one = planned(tmp_path).plan
    start = Allocation(job=Job(position=0, run_id="r", exclusive=True))
    notes = bound_plan(one, start, {}, numa=True).notes[len(one.notes) :]
    assert [note.partition(" has no effect: ")[0] for note in notes] == ["--bind numa", "--exclusive"]
    with_all = replace(start, leased=(0, 1))  # for other runs of the same command use some
    assert len(bound_plan(one, with_all, {}, numa=False).notes) == len(one.notes)
    skipped = replace(one, skip_model_run=True)
    assert bound_plan(skipped, start, {}, numa=True) == skipped, "it does not run at all"

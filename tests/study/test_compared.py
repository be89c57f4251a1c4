"""What a comparison makes of the runs of a study."""

from __future__ import annotations

from msgspec.structs import replace

from madlite.cli.show import command_options
from madlite.model import Metric, Provenance, Status, Study
from madlite.reports.series import of_record
from madlite.reports.series_key import record_facts
from madlite.store.record import Record

METRIC = Metric(metric="samples/s", text="10", status=Status.SUCCESS, value=10.0)
WARM = Study(id="s", kind="repeat", series=1, index=1, count=2, caches="warm")
ENVIRONMENT = {"TRITON_CACHE_DIR": "/x/series-1/triton", "NCCL_DEBUG": "WARN"}
RECORD = Record(
    id="r",
    status=Status.SUCCESS,
    card="a",
    study=WARM,
    caches="warm",
    metrics=(METRIC,),
    provenance=Provenance(environment=ENVIRONMENT),
)


def test_a_warm_up_is_no_sample():
    assert [one.sample.value for one in of_record(RECORD, "") if one.sample.value] == [10.0]
    assert list(of_record(replace(RECORD, study=replace(WARM, index=None, warm_up=True)), "")) == []


def test_what_the_caches_hold_is_compared_and_where_a_study_has_them_is_not():
    facts = record_facts(RECORD)
    assert facts["caches"] == "warm" and facts["env NCCL_DEBUG"] == "WARN" and "env TRITON_CACHE_DIR" not in facts
    own = record_facts(replace(RECORD, study=None, caches="user"))
    assert own["caches"] == "user" and own["env TRITON_CACHE_DIR"] == "/x/series-1/triton"


def test_the_command_of_one_run_repeats_none():
    words = ("run", "--tags", "a", "--repeat", "5", "--cold", "--settle=45", "--settle-timeout", "9")
    assert command_options((*words, "--keep-model-dir")).words == ("--keep-model-dir",)

"""A multiple_results file: what it needs, what it overrides, and that an old one is never taken for a new one."""

from __future__ import annotations

import csv
import os

from madlite.measure.performance import FileBefore, is_fresh, is_touched, read_results, results_since, stamp
from madlite.model import Status
from tests.rows import each_row


def read(tmp_path, text):
    file = tmp_path / "r.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_results(file)


def test_results_and_their_further_columns(tmp_path):
    found = read(tmp_path, "model, performance, metric, tp\n01,10.5,tokens/s,8\nb,,tokens/s,4\n\n")
    first, second = found.metrics
    assert (first.label, first.text, first.metric, first.columns) == ("01", "10.5", "tokens/s", {"tp": "8"})
    assert second.status is Status.FAILURE and second.text == ""
    assert found.problem == ""
    # thousands and quotes
    (metric,) = read(tmp_path, '\ufeffmodel,performance,metric\r\n"a,b","2,872",x\r\n').metrics
    assert (metric.label, metric.text) == ("a,b", "2872")
    # a status column is not believed
    (metric,) = read(tmp_path, "model,performance,metric,status\na,nan,x,SUCCESS\n").metrics
    assert metric.status is Status.FAILURE and "status" not in metric.columns
    # a cell may be longer than csv reads by itself
    limit = csv.field_size_limit()
    long = "x" * (limit + 1)
    (metric,) = read(tmp_path, f"model,performance,metric,notes\na,5,x,{long}\n").metrics
    assert (metric.text, metric.columns["notes"]) == ("5", long)
    assert csv.field_size_limit() == limit, "other code's limit is as it was"
    # bytes that are no utf 8 can be told apart
    (metric,) = read(tmp_path, b"\xef\xbb\xbfmodel,performance,metric,c\xff\na\xe9,5,x,\xfe\n").metrics
    assert metric.label.encode(errors="surrogateescape") == b"a\xe9"
    assert metric.columns == {"c\udcff": "\udcfe"}


@each_row(
    ("text", "said"),
    [
        ("", "empty"),
        ("\n\n", "empty"),
        ("model,performance\na,1\n", "no column metric"),
        ("a,1,x\n", "no column model, performance, metric"),
        ("model,performance,metric\n", "no results"),
    ],
)
def test_what_holds_no_result_says_why(tmp_path, text, said):
    found = read(tmp_path, text)
    assert not found.metrics and said in found.problem


def test_what_is_no_table_of_results_has_none(tmp_path):
    # noise and a missing file do not raise
    assert read(tmp_path, bytes(range(256)) * 3).problem
    assert read_results(tmp_path / "none.csv").problem
    # more results than a table is for are none
    head, line = "model,performance,metric\n", "a,1,x\n"
    assert len(read(tmp_path, head + line * 10_000).metrics) == 10_000
    found = read(tmp_path, head + line * 10_001)
    assert not found.metrics and "10001 results, and 10000 at most" in found.problem
    # the cells of a record that an unquoted comma moved are no result
    head = "model,performance,metric,tp\n"
    (moved,) = read(tmp_path, head + "m,12,5,tokens/s,8\n").metrics
    assert moved.status is Status.FAILURE
    (blank,) = read(tmp_path, head + "m,12,tokens/s,8,,\n").metrics
    assert blank.status is Status.SUCCESS
    # beside a decimal comma what it may be in others is no number either
    found = read(tmp_path, 'model,performance,metric\na,"12,5",x\nb,"7,123",x\nc,7.123,x\nd,9.5,x\ne,1234,x\n')
    assert [metric.text for metric in found.metrics] == ["", "", "", "9.5", "1234"]
    assert found.notes == (
        "r.csv has '12,5', which is no number: a comma separates groups of three digits and nothing else",
    )


def test_freshness(tmp_path):
    file = tmp_path / "r.csv"
    assert not is_fresh(file, None, 0)
    file.write_text("old")
    os.utime(file, ns=(10**18, 10**18))
    before, begun = stamp(file), 2 * 10**18
    assert not is_fresh(file, before, begun), "left over from an earlier run"
    assert not is_fresh(file, None, begun), "brought along with an old date"
    file.write_text("new!")
    os.utime(file, ns=(begun + 1, begun + 1))
    assert is_fresh(file, before, begun)


ROW = "m,{},tokens_per_second\n"
OLD = "model,performance,metric\n" + ROW.format(101) + ROW.format(102)


@each_row(
    ("now", "expected"),
    [
        (OLD + ROW.format(103), ["103"]),
        (OLD + ROW.format(102), ["102"]),
        ((OLD + ROW.format(103)).replace("metric\n", "metric,batch\n").replace("second\n", "second,8\n"), ["103"]),
        ("model,performance,metric\n" + ROW.format(103) + ROW.format(102), ["103", "102"]),
        ("model,performance,metric\n" + ROW.format(101), ["101"]),
        (OLD, ["101", "102"]),
    ],
    ids=["appended", "the same number again", "written anew with the old rows", "others", "fewer", "the same anew"],
)
def test_what_a_file_had_before_the_run_is_no_result_of_it(now, expected):
    before = FileBefore(inode=1, mtime_ns=1, size=len(OLD), data=OLD.encode())
    found = results_since("r.csv", now.encode(), before, touched=False)
    assert [metric.text for metric in found.metrics] == expected
    assert len(found.notes) == (len(expected) == 1 and len(now) > len(OLD))


def test_a_file_that_was_only_touched_has_no_result_and_one_that_was_written_again_has(tmp_path):
    file = tmp_path / "r.csv"
    file.write_text(OLD)
    before = stamp(file, file.read_bytes())
    file.write_text(OLD)
    os.utime(file, ns=(before.mtime_ns, file.stat().st_mtime_ns + 1))  # nothing has read it since
    assert not is_touched(file, before)
    file.touch()
    assert is_touched(file, before) and results_since("r.csv", OLD.encode(), before, touched=True) is None
    (tmp_path / "new.csv").write_text(OLD)
    (tmp_path / "new.csv").replace(file)
    file.touch()
    assert not is_touched(file, before), "another file took its place"


@each_row("text", ['"12,5"', '"7.123,4"', '"0,512"', '"1.234.567"', '"12,34,567"', "12,5", "2,872"])
def test_a_comma_that_separates_no_groups_makes_no_number(tmp_path, text):
    (metric,) = read(tmp_path, f"model,performance,metric\nm,{text},tokens_per_second\n").metrics
    assert (metric.status, metric.text, metric.value) == (Status.FAILURE, "", None)

"""`madlite archive` and `madlite import` of stored runs: what goes in, what comes out, and what no archive can do."""

from __future__ import annotations

import csv
import fcntl
import gzip
import json
import os
import re
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.archive import pack as manifest_of_archive
from madlite.archive.import_ import _staging_folder, unpack
from madlite.batch.leftovers import Leftovers, end_journals
from madlite.cli.main import call
from madlite.errors import UsageProblem
from madlite.files import Folder
from madlite.jobs.submission import stored_submissions
from madlite.model import Study
from madlite.model.results import Attempt, FailedAttempt
from madlite.store.events import EventLog, RunImported
from madlite.store.folder import LOG, PLAN, RECORD, RunRows, open_runs, read_run
from madlite.store.record import File, load_record, record_json
from tests.archive import tars
from tests.cli.stored_runs import good, store
from tests.rows import each_row

ONE, TWO = "20260102T030405-a-000001", "20260102T030500-b-000002"
ROW = {"model": "tiny", "performance": "12.5", "metric": "tps", "status": "SUCCESS"}
SECRET = "s3cr3tvalue42"  # noqa: S105


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    store(work, ONE, good(ONE), log=b"performance: 12.5 tps\n")
    store(work, TWO, good(TWO, "2026-01-02T03:05:00+00:00"))
    return work


def said(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    assert call(args) == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err and "internal error" not in captured.err
    return captured.out + captured.err


def folder(place: Path, run: str = ONE) -> Path:
    return place / "madlite_runs" / run


def imported(place: Path, run: str = ONE) -> Path:
    """Return the folder of a run that was imported."""
    (entry,) = {one.run for one in EventLog.read(place / "madlite_runs").of(RunImported) if one.archived_id == run}
    return place / "madlite_runs" / entry


def left_in(place: Path) -> set[str]:
    """Return what is in a folder into which nothing was taken, but for an empty folder of runs."""
    assert {one.name for one in place.glob("madlite_runs/*")} <= {".gitignore", ".import.lock"}
    return {one.name for one in place.iterdir()} - {"madlite_runs"}


def elsewhere(place: Path) -> Path:
    other = place.parent / "other"
    other.mkdir(exist_ok=True)
    return other


def test_an_archive_has_to_be_named(place, capsys):
    assert "missing option '-o' / '--output'" in said(capsys, "archive", "last", code=4)


def test_an_archive_has_the_run_s_files_and_no_weights_links_caches_or_secret_files(place, capsys):
    home = folder(place)
    (home / "outputs").mkdir()
    for name in ("outputs/summary.csv", "outputs/model.safetensors", "outputs/.env", "outputs/hf_token.txt"):
        (home / name).write_text("x")
    (home / "cache").mkdir()
    (home / "cache/index.json").write_text("{}")
    (home / "outputs/away.csv").symlink_to("/etc/hostname")
    os.mkfifo(home / "outputs/pipe.csv")
    text = said(capsys, "archive", ONE, "-o", "x.tar.gz")
    names = {name.partition("/")[2] for name in tars.read(Path("x.tar.gz"))}
    assert names == {"", RECORD, PLAN, LOG, "outputs/summary.csv"}
    assert "left out: 6 files" in text and "wrote x.tar.gz: 1 run, 4 files" in text
    manifest = json.loads(tars.read(Path("x.tar.gz"))["manifest.json"])
    why = {one["path"]: one["why"] for one in manifest["runs"][0]["left_out"]}
    assert why["outputs/away.csv"] == "a link" and why["cache/index.json"] == "cache or data"
    assert why["outputs/hf_token.txt"] == "its name is that of a secret" and why["outputs/.env"] == "hidden"


def test_the_same_runs_give_the_same_bytes(place, capsys):
    said(capsys, "archive", "2026*", "-o", "x.tar.gz")
    os.utime(folder(place) / LOG, (1, 1))
    (folder(place) / LOG).chmod(0o600)
    said(capsys, "archive", TWO, ONE, "-o", "y.tar.gz")
    assert Path("x.tar.gz").read_bytes() == Path("y.tar.gz").read_bytes()
    with tarfile.open("x.tar.gz") as tar:
        facts = {(one.mtime, one.uid, one.gid, one.uname, one.mode) for one in tar}
    assert facts == {(0, 0, 0, "", 0o644)}


def test_secrets_are_masked_in_every_file_and_json_stays_json(place, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("MAD_SECRETS_PIN", "12.5e00")  # a secret that a number spells
    (place / "credential.json").write_text(json.dumps({"hub": {"password": "hunter2hunter2", "username": "root"}}))
    home = folder(place)
    (home / LOG).write_bytes(f"token {SECRET} and hunter2hunter2\nperformance: 12.5 tps\n".encode())
    (home / "summary.json").write_text(json.dumps({"key": SECRET, "number": 12.5}).replace("12.5", "12.5e00"))
    (home / "x.txt").write_text("https://me:geheimes4711@example.org")
    text = said(capsys, "archive", ONE, "-o", "x.tar.gz")
    files = tars.read(Path("x.tar.gz"))
    whole = b"".join(files.values())
    assert not any(one in whole for one in (SECRET.encode(), b"hunter2", b"geheimes4711"))
    assert files[f"{ONE}/{LOG}"] == b"token *** and ***\nperformance: 12.5 tps\n"
    assert json.loads(files[f"{ONE}/summary.json"])["key"] == "***" and "secrets masked in 3" in text
    masked = {one["path"] for one in json.loads(files["manifest.json"])["runs"][0]["files"] if one["masked"]}
    assert masked == {LOG, "summary.json", "x.txt"}


LEFT = {
    "key.txt": "-----BEGIN PRIVATE KEY-----\n"
    + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC/+0\n" * 20
    + "-----END PRIVATE KEY-----\n",
    "login.json": '{"auths": {"r.example": {"auth": "bWU6aHVudGVyMjQ3MTE="}}, "n": 1.50}',
    "a.yaml": "db:\n  password: hunter2\n  token: hunter24711xy\n  tokens: 1234\n",
    "a.toml": 'secret = "hunter24711xy"\nsteps = 20\n',
    "a.md": "sk-"
    + "Hunter2abcd" * 4
    + " npm_"
    + "hunter24711x" * 3
    + " aGZfaHVudGVyMjQ3MTFodW50ZXIyNDcxMWh1bnRlcjI0NzExYWI\n",
}


def test_secrets_that_a_workload_left_in_files_are_masked_and_the_files_named(place, capsys):
    for name, text in LEFT.items():
        (folder(place) / name).write_text(text)
    text = said(capsys, "archive", ONE, "-o", "x.tar.gz")
    assert "secrets masked in 5 files: a.md (3), a.toml (1), a.yaml (2), key.txt (1), login.json (1)" in text
    files = {name.partition("/")[2]: data.decode() for name, data in tars.read(Path("x.tar.gz")).items()}
    assert not [name for name, text in files.items() if re.search("[Hh]unter2|MIIE|bWU6|aHVudGVy", text)]
    assert files["login.json"] == '{"auths": {"r.example": {"auth": "***"}}, "n": 1.50}'
    assert files["a.yaml"] == "db:\n  password: ***\n  token: ***\n  tokens: 1234\n"
    assert files["a.toml"] == 'secret = "***"\nsteps = 20\n'


def test_a_secret_of_a_long_file_is_masked_wherever_its_pieces_end(place, capsys):
    line = b"a: 1 loss 2.5\n"
    for size in range((1 << 20) - 60, 1 << 20, 7):
        (folder(place) / f"{size}.txt").write_bytes((line * (size // len(line)))[:size] + b"\npassword: hunter2\n")
    said(capsys, "archive", ONE, "-o", "x.tar.gz")
    assert not [name for name, data in tars.read(Path("x.tar.gz")).items() if b"hunter2" in data]


def test_a_file_that_cannot_be_read_as_text_is_left_out_unless_asked_for(place, capsys):
    (folder(place) / "utf16.csv").write_bytes("password,hunter2".encode("utf-16"))
    (folder(place) / "nul.txt").write_bytes(b"a\0b")
    (folder(place) / LOG).write_bytes(b"\xff\0 performance: 12.5 tps\n")  # a run's own log is always there
    text = said(capsys, "archive", ONE, "-o", "x.tar.gz")
    assert "utf16.csv (it cannot be read as text: --binary)" in text and "left out: 2 files" in text
    assert {name.partition("/")[2] for name in tars.read(Path("x.tar.gz"))} == {"", RECORD, PLAN, LOG}
    said(capsys, "archive", ONE, "-o", "y.tar.gz", "--binary")
    assert tars.read(Path("y.tar.gz"))[f"{ONE}/nul.txt"] == b"a\0b"


def test_a_file_whose_path_has_a_secret_is_left_out_and_named_masked(place, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("MAD_SECRETS_NAME", RECORD)  # madlite's own names stay
    shaped = "hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH"
    for name in (f"outputs/run_{shaped}.json", f"outputs/{SECRET}/loss.csv", "outputs/plain.csv"):
        (folder(place) / name).parent.mkdir(parents=True, exist_ok=True)
        (folder(place) / name).write_text("{}")
    text = said(capsys, "archive", ONE, "-o", "x.tar.gz")
    files = tars.read(Path("x.tar.gz"))
    assert {name.partition("/")[2] for name in files} == {"", RECORD, PLAN, LOG, "outputs/plain.csv"}
    out = json.loads(files["manifest.json"])["runs"][0]["left_out"]
    assert {(one["path"], one["why"]) for one in out} == {
        ("outputs/run_***.json", "its path has a secret"),
        ("outputs/***/loss.csv", "its path has a secret"),
    }
    assert "left out: 2 files" in text
    assert not any(one in f"{text}{files}" for one in (SECRET, shaped))


def test_a_large_file_is_left_out_with_a_note(place, capsys):
    (folder(place) / "big.txt").write_bytes(b"x" * 40_000)
    text = said(capsys, "archive", ONE, "-o", "x.tar.gz", "--max-file", "32K")
    assert "left out: 1 file, 39.1 KiB: big.txt (larger than --max-file)" in text


@each_row(
    ("args", "words"),
    [
        (["-o", "x.tar.gz"], "no run is named"),
        ([ONE, "-o", "x.zip"], "x.zip is no name of an archive"),
        ([ONE, "-o", "there.tgz"], "there.tgz is there already"),
        ([ONE, "-o", "none/x.tgz"], "none/x.tgz cannot be written: No such file or directory"),
        (["nope", "-o", "x.tgz"], "no run 'nope'"),
        (["--of", "2020", "-o", "x.tgz"], "none of 0 runs"),
        ([ONE, "-o", "x.tgz", "--max-file", "soup"], "'soup' is no size"),
    ],
)
def test_what_cannot_be_packed_is_said_in_a_sentence(place, capsys, args, words):
    Path("there.tgz").write_text("")
    assert words in said(capsys, "archive", *args, code=4)
    assert not Path("x.tgz").exists() and [*place.glob(".*.tgz.*")] == []


def test_a_run_without_a_record_is_not_packed(place, capsys):
    (folder(place) / RECORD).unlink()
    assert "is not packed: it was cut off" in said(capsys, "archive", ONE, "-o", "x.tgz", code=4)
    text = said(capsys, "archive", "2026*", "-o", "x.tgz")
    assert f"left out: run {ONE}: it was cut off" in text and "1 run, " in text


def test_imported_runs_are_listed_as_imported_and_are_those_that_were_packed(place, capsys):
    said(capsys, "archive", "2026*", "-o", "x.tar.gz")
    other = elsewhere(place)
    text = said(capsys, "import", "x.tar.gz", "--dir", str(other))
    one, two = imported(other, ONE).name, imported(other, TWO).name
    assert f"{ONE}: taken in as {one}" in text and "2 runs taken in, 2 runs in x.tar.gz" in text
    assert re.fullmatch("20260102T030405-tiny-[0-9a-f]{8}", one) and two.startswith("20260102T030500-tiny-")
    listed = json.loads(said(capsys, "runs", "--json", "--dir", str(other)))
    assert [(each["id"], each["doubt"], each["origin"]) for each in listed] == [
        (one, "", "x.tar.gz"),
        (two, "", "x.tar.gz"),
    ]
    assert "SUCCESS, imported" in said(capsys, "runs", "--dir", str(other))
    for name in (one, ONE):
        assert f"from x.tar.gz, as {ONE}" in said(capsys, "show", name, "--dir", str(other))
    home = imported(other)
    assert (home / LOG).read_bytes() == (folder(place) / LOG).read_bytes()
    for name in (RECORD, PLAN):
        text = (home / name).read_text()
        assert text.replace(f'"id": "{one}"', f'"id": "{ONE}"') == (folder(place) / name).read_text()
    assert {each.name for each in (other / "madlite_runs").iterdir()} == {*(one, two, ".gitignore", "events.jsonl")}
    again = said(capsys, "import", "x.tar.gz", "--dir", str(other))
    assert f"{ONE}: already here as {one}" in again and "0 runs taken in" in again
    assert f"{ONE}: already here" in said(capsys, "import", "x.tar.gz")  # where the runs are from


def test_a_run_that_is_here_with_another_content_is_refused_by_name_and_the_others_come(place, capsys):
    said(capsys, "archive", "2026*", "-o", "x.tar.gz")
    other = elsewhere(place)
    store(other, ONE, good(ONE, "2026-03-03T03:03:03+00:00"))
    before = (folder(other) / RECORD).read_bytes()
    text = said(capsys, "import", "x.tar.gz", "--dir", str(other), code=3)
    assert f"{ONE}: not taken in: a run of this id is here with another record.json" in text
    assert f"{TWO}: taken in" in text and (folder(other) / RECORD).read_bytes() == before


def change(place: Path, run: str, **fields: object) -> None:
    record = load_record(folder(place, run))
    assert record is not None
    (folder(place, run) / RECORD).write_text(record_json(replace(record, **fields)))


STUDY = "20260102T030400-abcdef"


def test_runs_of_an_archive_name_each_other_and_their_study_by_ids_of_here(place, capsys):
    rows = RunRows(path="perf.csv", cells=({**ROW, "run": TWO},), appended=True)
    study = Study(id=STUDY, kind="repeat", series=1, index=1, count=1)
    change(place, ONE, attempt=Attempt(retries=2, next=TWO), batch=STUDY, study=study)
    again = Attempt(number=2, earlier=(FailedAttempt(run=ONE, cause="hang"),), next="20260102T030600-c-000003")
    change(place, TWO, attempt=again, beside=(ONE, "other"), rows=rows)
    said(capsys, "archive", "2026*", "-o", "x.tgz")
    other = elsewhere(place)
    said(capsys, "import", "x.tgz", "--rows", "--dir", str(other))
    one, two = (load_record(imported(other, run)) for run in (ONE, TWO))
    assert one is not None and two is not None and two.attempt is not None and one.attempt is not None
    assert (one.attempt.next, two.attempt.earlier[0].run, two.beside) == (two.id, one.id, (one.id, "other"))
    assert one.study is not None and {one.study.id, one.batch} == {f"{STUDY}-imported"}
    assert two.attempt.next == "20260102T030600-c-000003-imported"  # nothing here can be meant
    with (other / "perf.csv").open(newline="") as file:
        assert [row["run"] for row in csv.DictReader(file)] == [two.id]
    before = tree(other / "madlite_runs")
    assert "0 runs taken in" in said(capsys, "import", "x.tgz", "--rows", "--dir", str(other))
    assert tree(other / "madlite_runs") == before


def tree(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def test_a_run_that_went_through_several_folders_is_known_by_its_first_id(place, capsys):
    said(capsys, "archive", ONE, "-o", "x.tgz")
    other, third = elsewhere(place), place.parent / "third"
    third.mkdir()
    said(capsys, "import", "x.tgz", "--dir", str(other))
    said(capsys, "archive", ONE, "-o", "y.tgz", "--dir", str(other))
    here = imported(other).name
    assert f"{here}: already here as {ONE}" in said(capsys, "import", "y.tgz")
    said(capsys, "import", "y.tgz", "--dir", str(third))
    assert f"already here as {imported(third).name}" in said(capsys, "import", "x.tgz", "--dir", str(third))


def test_an_import_that_goes_on_is_not_in_the_way_of_another(place, capsys):
    said(capsys, "archive", ONE, "-o", "x.tgz")
    other = elsewhere(place)
    with open_runs(other, make=True) as runs, _staging_folder(runs) as beside:  # as long as it unpacks
        (beside.path / "part").write_text("x")
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(call, ["import", "x.tgz", "--dir", str(other)]).result() == 0
        assert (beside.path / "part").exists() and imported(other).is_dir()
    assert not beside.path.exists()


def link(name: str, kind: bytes, to: str = "/etc/passwd") -> tarfile.TarInfo:
    one = tarfile.TarInfo(name)
    one.type, one.linkname = kind, to
    return one


def named(path: str, run: str = ONE) -> tars.Files:
    """Return an archive whose run has a second file of this name."""
    files = tars.small(run)
    manifest = json.loads(files["manifest.json"])
    manifest["runs"][0]["files"].append({"path": path, "bytes": 1, "sha256": "0" * 64})
    return {**files, "manifest.json": json.dumps(manifest).encode(), f"{run}/{path}": b"x"}


def submission() -> tars.Files:
    """Return an archive with what a submission has, as a run."""
    return tars.with_hashes(
        named("submission.json", "jobs-20261128T000000-abcdef") | {"jobs-20261128T000000-abcdef/submission.json": b"{}"}
    )


HOSTILE = {
    "a link": (tars.small(), [link(f"{ONE}/x", tarfile.SYMTYPE)], "is a link"),
    "a hard link": (tars.small(), [link(f"{ONE}/x", tarfile.LNKTYPE)], "is a link"),
    "a device": (tars.small(), [link(f"{ONE}/x", tarfile.CHRTYPE)], "is a device"),
    "a pipe": (tars.small(), [link(f"{ONE}/x", tarfile.FIFOTYPE)], "is a device, a pipe"),
    "a folder": (tars.small(), [link(f"{ONE}/x", tarfile.DIRTYPE)], "is a folder"),
    "a way out": (named("../../x"), [], "is outside of its folder"),
    "an absolute path": (named("/etc/x"), [], "is outside of its folder"),
    "a journal": (named("journal.jsonl"), [], "has a name that is not taken in"),
    "a lock": (named("lock"), [], "has a name that is not taken in"),
    "a hidden file": (named(".x"), [], "has a name that is not taken in"),
    "an escape": (named("\x1b[2Jx"), [], "has characters"),
    "a long name": (named("x" * 300), [], "has too long a name"),
    "a deep name": (named("x/" * 40 + "x"), [], "has too long a name"),
    "no id": (tars.small("../x"), [], "is no id of a run"),
    "a hidden run": (tars.small(".import-1"), [], "is no id of a run"),
    "the baselines": (tars.small("baselines"), [], "is no id of a run"),
    "a submission": (submission(), [], "is no id of a run"),
    **{
        f"{kind}…": (tars.small(f"{kind}20260102T030405-00000a"), [], "is no id of a run")
        for kind in ("study-", "check-", "batch-")
    },
    "a folder as first": (tars.small(first_id="jobs-20260102T030405-00000a"), [], "is no id of a run"),
    "a script": (tars.with_hashes(named("scripts/1.sh")), [], "is none that an archive has: no text"),
    "a kubeconfig": (tars.with_hashes(named("kubeconfig")), [], "is none that an archive has: no text"),
    "a newer format": (tars.small(format=9), [], "is of format 9"),
    "no manifest": ({"x": b""}, [], "does not begin with manifest.json"),
    "a manifest that is none": ({"manifest.json": b"[1"}, [], "cannot be read"),
    "another file": ({**tars.small(), f"{ONE}/more": b"x"}, [], "no such file, found 1 bytes"),
    "a changed file": ({**tars.small(), f"{ONE}/record.json": b"{}"}, [], "is not as it was packed"),
    "a missing file": ({"manifest.json": tars.small()["manifest.json"]}, [], "found no such file"),
    "a record of another run": (
        tars.with_hashes({**tars.small(), f"{ONE}/record.json": b'{"id": "x", "status": "SUCCESS", "version": 2}'}),
        [],
        "is of run x",
    ),
    "a broken record": (tars.with_hashes({**tars.small(), f"{ONE}/record.json": b'{"id": 7'}), [], "record.json"),
}


def test_a_result_of_a_run_may_be_called_as_a_file_of_a_submission(place, capsys):
    names = ("submission.json", "events.jsonl")
    for name in names:
        (folder(place) / name).write_text("{}\n")
    said(capsys, "archive", "2*", "-o", "x.tgz")
    other = elsewhere(place)
    said(capsys, "import", "x.tgz", "--dir", str(other))
    assert [(imported(other) / name).read_text() for name in names] == ["{}\n", "{}\n"]
    assert imported(other, TWO).is_dir() and stored_submissions(other) == ()


def test_a_record_that_is_too_deep_for_its_ids_is_refused_before_any_run_is_taken_in(place, capsys):
    said(capsys, "archive", "2*", "-o", "x.tgz")

    def import_nested(depth: int) -> tuple[int, Path]:
        nested = b'{"unknown": ' + b"[" * depth + b"]" * depth + b", "
        tars.changed(
            Path("x.tgz"), Path("y.tgz"), f"{TWO}/record.json", lambda data: data.replace(b"{", nested, 1), hashes=True
        )
        capsys.readouterr()
        other = place.parent / f"other-{depth}"
        other.mkdir()
        return call(["import", "y.tgz", "--dir", str(other)]), other

    codes = {}
    taken, refused = 1, 200_000  # depths that every Python reads, and that none does
    while refused - taken > 1:
        depth = (taken + refused) // 2
        codes[depth], other = import_nested(depth)
        taken, refused = (depth, refused) if codes[depth] == 0 else (taken, depth)
        if codes[depth]:
            text = capsys.readouterr().err
            assert codes[depth] == 4 and "error: " in text and "record.json" in text and TWO in text, text
            assert left_in(other) == set()
    assert 0 in codes.values() and 4 in codes.values()


def headers(archive: Path, *members: tuple[bytes, bytes]) -> Path:
    """Write an archive of headers that tarfile reads with what is behind them: each a kind and its content."""
    with gzip.open(archive, "wb") as file:
        for kind, data in members:
            one = tarfile.TarInfo("manifest.json")
            one.type, one.size = kind, len(data)
            file.write(one.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512))
    return archive


STRANGE = re.compile("has a header that none of an archive of runs has|is no whole archive of runs")


@each_row(
    ("members", "words"),
    [
        ([(tarfile.XHDTYPE, b"1" * 300_000)], STRANGE),  # in which a number is looked for from each digit on
        ([(tarfile.XHDTYPE, b"1" * 8000)], STRANGE),
        ([(tarfile.XHDTYPE, b"11 a=b" + b" " * 4 + b"\n")], STRANGE),
        ([(tarfile.XHDTYPE, b"0 path=x\n")], STRANGE),
        # numbers that Python reads and a header does not have
        *(
            ([(tarfile.XHDTYPE, record), (tarfile.REGTYPE, b"")], STRANGE)
            for record in (b"-9 path=x\n", b"+9 path=x\n", b"1_0 path=x\n", b"11 size=-5\n")
        ),
        ([(tarfile.XHDTYPE, b"10 path=x\n")] * 5000, STRANGE),  # tarfile reads each within the one before
        ([(tarfile.GNUTYPE_LONGNAME, b"x" * 200)] * 5000, STRANGE),
        ([(tarfile.XGLTYPE, b"10 path=x\n")], STRANGE),
        ([(tarfile.REGTYPE, b"")], re.compile("manifest.json cannot be read")),
    ],
)
def test_headers_that_no_archive_of_runs_has_are_refused_in_a_sentence(tmp_path, capsys, monkeypatch, members, words):
    monkeypatch.chdir(tmp_path)
    archive = headers(tmp_path / "x.tar.gz", *members)
    for command in ("import", "verify"):
        assert words.search(said(capsys, command, "x.tar.gz", code=4))
    assert left_in(tmp_path) == {archive.name}


@each_row("kind", [tarfile.REGTYPE, tarfile.XHDTYPE])
def test_a_size_below_zero_leads_nowhere(tmp_path, capsys, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    one = tarfile.TarInfo("manifest.json")
    one.type, one.size = kind, -1024
    with gzip.open("x.tar.gz", "wb") as file:
        file.write(one.tobuf(tarfile.GNU_FORMAT) * 3)
    assert STRANGE.search(said(capsys, "import", "x.tar.gz", code=4))


def test_names_that_need_a_header_of_their_own_are_read(place, capsys):
    name = f"outputs/{'é' * 90}/{'long' * 20}.csv"
    (folder(place) / name).parent.mkdir(parents=True)
    (folder(place) / name).write_text("x")
    said(capsys, "archive", ONE, "-o", "x.tar.gz")
    assert b"path=" in gzip.decompress(Path("x.tar.gz").read_bytes())
    said(capsys, "import", "x.tar.gz", "--dir", str(elsewhere(place)))
    assert [one.read_text() for one in elsewhere(place).glob(f"madlite_runs/*/{name}")] == ["x"]


def test_more_runs_than_an_archive_has_are_refused_before_anything_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = tars.small()
    manifest = json.loads(files["manifest.json"])
    (run,) = manifest["runs"]
    manifest["runs"] = [{**run, "id": f"run-{n}"} for n in range(20_000)]
    archive = tars.write(tmp_path / "x.tar.gz", {"manifest.json": json.dumps(manifest).encode()})
    for command in ("import", "verify"):
        assert "x.tar.gz has 20000 runs, more than 10000 runs" in said(capsys, command, "x.tar.gz", code=4)
    assert left_in(tmp_path) == {archive.name}


@each_row("what", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(tmp_path, capsys, monkeypatch, what):
    files, more, words = HOSTILE[what]
    monkeypatch.chdir(tmp_path)
    archive = tars.write(tmp_path / "x.tar.gz", files, *more)
    text = said(capsys, "import", "x.tar.gz", code=4)
    assert words in text and "\x1b" not in text
    assert left_in(tmp_path) == {archive.name}
    if not any(one in words for one in ("as it was packed", "found", "is none that")) and "record" not in what:
        assert words in said(capsys, "verify", "x.tar.gz", code=4)


@pytest.mark.host
def test_an_archive_that_is_cut_anywhere_leaves_nothing(place, capsys, monkeypatch):
    said(capsys, "archive", "2026*", "-o", "x.tar.gz")
    whole, other = Path("x.tar.gz").read_bytes(), elsewhere(place)
    monkeypatch.chdir(other)
    for cut in (*range(0, len(whole) - 8, max(1, len(whole) // 40)), len(whole) - 9):
        Path("x.tar.gz").write_bytes(whole[:cut])
        assert "error: x.tar.gz" in said(capsys, "import", "x.tar.gz", code=4)
        assert left_in(other) == {"x.tar.gz"}


@pytest.mark.host
def test_a_bomb_is_refused_before_it_is_written(tmp_path, monkeypatch):
    into = tmp_path / "into"
    into.mkdir()
    files = named("big")
    manifest = json.loads(files["manifest.json"])
    manifest["runs"][0]["files"][1]["bytes"] = 1 << 40
    claimed = tars.write(tmp_path / "a.tgz", {**files, "manifest.json": json.dumps(manifest).encode()})
    long = tarfile.TarInfo("x")
    long.type = tarfile.XHDTYPE
    long.size = 65 << 20
    headers = tars.zeros(tmp_path / "b.tgz", "x", 1 << 20)
    with tarfile.open(tmp_path / "c.tgz", "w:gz") as tar:
        tar.addfile(long, open("/dev/zero", "rb"))
    with Folder.open(into) as folder:
        for archive, words in (
            (claimed, "unpacks to 1.0 TiB"),
            (headers, "does not begin"),
            (tmp_path / "c.tgz", "header"),
        ):
            with pytest.raises(UsageProblem, match=words):
                unpack(archive, folder, 1 << 20)
        monkeypatch.setattr(manifest_of_archive, "MAX_FILES", 0)
        with pytest.raises(UsageProblem, match="more than 0 files"):
            unpack(tars.write(tmp_path / "d.tgz", tars.small()), folder, 1 << 20)
    assert [*into.iterdir()] == []


def test_clean_removes_what_a_killed_import_left(place, capsys, monkeypatch):
    left = place / "madlite_runs/.import-4194999/x"
    left.mkdir(parents=True)
    (left / RECORD).write_text("{}")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{place}/none.sock")
    assert ".import-4194999" in said(capsys, "clean")
    said(capsys, "clean", "--yes")
    assert not left.parent.exists() and folder(place).is_dir()


def test_clean_leaves_an_import_of_another_machine_alone(place, capsys, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{place}/none.sock")
    left = place / "madlite_runs/.import-4194999"  # no thread here has that number
    left.mkdir()
    with Folder.open(left) as beside:
        lock = beside.open_file(".lock")
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ".import-" not in said(capsys, "clean")
        os.close(lock)
    assert ".import-" in said(capsys, "clean")


def test_two_imports_of_the_same_thread_number_do_not_collide(place):
    """Machines that share a folder number their threads alike."""
    with open_runs(place) as runs, _staging_folder(runs) as first, _staging_folder(runs) as second:
        assert first.path != second.path


def test_rendered_files_are_packed_wherever_they_lie(place, capsys):

    home = folder(place)
    (home / "data").mkdir()
    (home / "data/run.py").write_text("x")
    record = load_record(home)
    assert record is not None
    (home / RECORD).write_text(
        record_json(replace(record, files=(File(path="data/run.py", bytes=1, sha256="0" * 64),)))
    )
    said(capsys, "archive", ONE, "-o", "x.tar.gz")
    assert f"{ONE}/data/run.py" in tars.read(Path("x.tar.gz"))


@pytest.fixture
def pruned(place: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return a folder with the rows of two runs, equal ones, whose folders were imported and pruned."""
    for run in (ONE, TWO):
        record = load_record(folder(place, run))
        assert record is not None
        rows = RunRows(path="perf.csv", cells=(ROW,), appended=True)
        (folder(place, run) / RECORD).write_text(record_json(replace(record, rows=rows)))
    said(capsys, "archive", "2026*", "-o", "x.tgz")
    other = elsewhere(place)
    assert "its row was added to perf.csv" in said(capsys, "import", "x.tgz", "--rows", "--dir", str(other))
    remove(capsys, other)
    return other


def test_clean_leaves_the_note_of_the_rows_of_imported_runs(place, capsys):
    record = load_record(folder(place, ONE))
    assert record is not None
    rows = RunRows(path="perf.csv", cells=(ROW,), appended=True)
    (folder(place, ONE) / RECORD).write_text(record_json(replace(record, rows=rows)))
    said(capsys, "archive", ONE, "-o", "x.tgz")
    other = elsewhere(place)
    said(capsys, "import", "x.tgz", "--rows", "--dir", str(other))
    end_journals(other, Leftovers(leftovers=()))
    assert read_run(imported(other)).rows is not None


def remove(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    said(capsys, "clean", "--old", "--keep-last", "0", "--all", "--yes", "--dir", str(place))
    assert not [*(place / "madlite_runs").glob("2026*")]


def test_rows_of_a_run_whose_folder_was_pruned_are_not_appended_again(pruned, capsys):
    before = (pruned / "perf.csv").read_bytes()
    assert before.count(b"tiny") == 2
    for _ in range(2):  # what the second prune notes is asked, too
        for _ in range(2):
            text = said(capsys, "import", "x.tgz", "--rows", "--dir", str(pruned))
            assert text.count("its row is in perf.csv") == 2
            assert (pruned / "perf.csv").read_bytes() == before
        runs = ["--runs", str(pruned / "madlite_runs")]
        said(capsys, "report", "rebuild", *runs, "-o", str(pruned / "again.csv"))
        assert (pruned / "again.csv").read_bytes() == before
        (pruned / "again.csv").unlink()
        remove(capsys, pruned)


def test_a_folder_that_was_imported_without_rows_in_between_changes_nothing(pruned, capsys):
    before = (pruned / "perf.csv").read_bytes()
    said(capsys, "import", "x.tgz", "--dir", str(pruned))
    remove(capsys, pruned)
    said(capsys, "import", "x.tgz", "--rows", "--dir", str(pruned))
    assert (pruned / "perf.csv").read_bytes() == before


def test_rows_that_were_removed_with_their_file_are_appended_again(pruned, capsys):
    before = (pruned / "perf.csv").read_bytes()
    (pruned / "perf.csv").unlink()
    assert "its row was added to perf.csv" in said(capsys, "import", "x.tgz", "--rows", "--dir", str(pruned))
    assert (pruned / "perf.csv").read_bytes() == before


def test_rows_of_runs_of_one_second_come_in_the_order_in_which_they_were_appended(place, capsys):
    for run, speed, at in ((ONE, "2", "00.200000"), (TWO, "1", "00.100000")):
        record = load_record(folder(place, run))
        assert record is not None
        rows = RunRows(
            path="perf.csv", cells=({**ROW, "performance": speed},), appended=True, at=f"2026-01-02T03:06:{at}+00:00"
        )
        same = replace(record, started="2026-01-02T03:04:05+00:00", rows=rows)
        (folder(place, run) / RECORD).write_text(record_json(same))
    said(capsys, "archive", "2026*", "-o", "x.tgz")
    said(capsys, "import", "x.tgz", "--rows", "--dir", str(elsewhere(place)))
    with (elsewhere(place) / "perf.csv").open(newline="") as file:
        assert [row["performance"] for row in csv.DictReader(file)] == ["1", "2"]

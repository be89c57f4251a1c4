"""`madlite archive` and `madlite import` of stored runs: what goes in, what comes out, and what no archive can do."""

from __future__ import annotations

import fcntl
import json
import os
import re
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.archive import pack as manifest_of_archive
from madlite.archive.import_ import _staging_folder, unpack
from madlite.cli.main import call
from madlite.errors import UsageProblem
from madlite.files import Folder
from madlite.jobs.submission import stored_submissions
from madlite.model import Study
from madlite.model.results import Attempt, FailedAttempt
from madlite.store.events import EventLog, RunImported
from madlite.store.folder import LOG, PLAN, RECORD, RunRows, open_runs
from madlite.store.record import File, load_record, record_json
from tests.archive import zips
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
    assert {one.name for one in place.glob("madlite_runs/*")} <= {".gitignore"}
    return {one.name for one in place.iterdir()} - {"madlite_runs"}


def elsewhere(place: Path) -> Path:
    other = place.parent / "other"
    other.mkdir(exist_ok=True)
    return other


def test_an_archive_has_the_run_s_files_and_no_weights_links_caches_or_secret_files(place, capsys):
    home = folder(place)
    (home / "outputs").mkdir()
    for name in ("outputs/summary.csv", "outputs/model.safetensors", "outputs/.env", "outputs/hf_token.txt"):
        (home / name).write_text("x")
    (home / "cache").mkdir()
    (home / "cache/index.json").write_text("{}")
    (home / "outputs/away.csv").symlink_to("/etc/hostname")
    os.mkfifo(home / "outputs/pipe.csv")
    text = said(capsys, "archive", ONE, "-o", "x.zip")
    names = {name.partition("/")[2] for name in zips.read(Path("x.zip"))}
    assert names == {"", RECORD, PLAN, LOG, "outputs/summary.csv"}
    assert "left out: 6 files" in text and "wrote x.zip: 1 run, 4 files" in text
    manifest = json.loads(zips.read(Path("x.zip"))["manifest.json"])
    why = {one["path"]: one["why"] for one in manifest["runs"][0]["left_out"]}
    assert why["outputs/away.csv"] == "a link" and why["cache/index.json"] == "cache or data"
    assert why["outputs/hf_token.txt"] == "its name is that of a secret" and why["outputs/.env"] == "hidden"


def test_the_same_runs_give_the_same_bytes(place, capsys):
    said(capsys, "archive", "2026*", "-o", "x.zip")
    os.utime(folder(place) / LOG, (1, 1))
    (folder(place) / LOG).chmod(0o600)
    said(capsys, "archive", TWO, ONE, "-o", "y.zip")
    assert Path("x.zip").read_bytes() == Path("y.zip").read_bytes()
    with zipfile.ZipFile("x.zip") as archive:
        facts = {(one.date_time, one.external_attr >> 16) for one in archive.infolist()}
    assert facts == {((1980, 1, 1, 0, 0, 0), 0o644)}


def test_secrets_are_masked_in_every_file_and_json_stays_json(place, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("MAD_SECRETS_PIN", "12.5e00")  # a secret that a number spells
    (place / "credential.json").write_text(json.dumps({"hub": {"password": "hunter2hunter2", "username": "root"}}))
    home = folder(place)
    (home / LOG).write_bytes(f"token {SECRET} and hunter2hunter2\nperformance: 12.5 tps\n".encode())
    (home / "summary.json").write_text(json.dumps({"key": SECRET, "number": 12.5}).replace("12.5", "12.5e00"))
    (home / "x.txt").write_text("https://me:geheimes4711@example.org")
    text = said(capsys, "archive", ONE, "-o", "x.zip")
    files = zips.read(Path("x.zip"))
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
    text = said(capsys, "archive", ONE, "-o", "x.zip")
    assert "secrets masked in 5 files: a.md (3), a.toml (1), a.yaml (2), key.txt (1), login.json (1)" in text
    files = {name.partition("/")[2]: data.decode() for name, data in zips.read(Path("x.zip")).items()}
    assert not [name for name, text in files.items() if re.search("[Hh]unter2|MIIE|bWU6|aHVudGVy", text)]
    assert files["login.json"] == '{"auths": {"r.example": {"auth": "***"}}, "n": 1.50}'
    assert files["a.yaml"] == "db:\n  password: ***\n  token: ***\n  tokens: 1234\n"
    assert files["a.toml"] == 'secret = "***"\nsteps = 20\n'


def test_a_secret_of_a_long_file_is_masked_wherever_its_pieces_end(place, capsys):
    line = b"a: 1 loss 2.5\n"
    for size in range((1 << 20) - 60, 1 << 20, 7):
        (folder(place) / f"{size}.txt").write_bytes((line * (size // len(line)))[:size] + b"\npassword: hunter2\n")
    said(capsys, "archive", ONE, "-o", "x.zip")
    assert not [name for name, data in zips.read(Path("x.zip")).items() if b"hunter2" in data]


def test_a_file_that_cannot_be_read_as_text_is_left_out(place, capsys):
    (folder(place) / "utf16.csv").write_bytes("password,hunter2".encode("utf-16"))
    (folder(place) / "nul.txt").write_bytes(b"a\0b")
    (folder(place) / LOG).write_bytes(b"\xff\0 performance: 12.5 tps\n")  # a run's own log is always there
    text = said(capsys, "archive", ONE, "-o", "x.zip")
    assert "utf16.csv (it cannot be read as text)" in text and "left out: 2 files" in text
    assert {name.partition("/")[2] for name in zips.read(Path("x.zip"))} == {"", RECORD, PLAN, LOG}


def test_a_file_whose_path_has_a_secret_is_left_out_and_named_masked(place, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("MAD_SECRETS_NAME", RECORD)  # madlite's own names stay
    shaped = "hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH"
    for name in (f"outputs/run_{shaped}.json", f"outputs/{SECRET}/loss.csv", "outputs/plain.csv"):
        (folder(place) / name).parent.mkdir(parents=True, exist_ok=True)
        (folder(place) / name).write_text("{}")
    text = said(capsys, "archive", ONE, "-o", "x.zip")
    files = zips.read(Path("x.zip"))
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
    text = said(capsys, "archive", ONE, "-o", "x.zip", "--max-file", "32K")
    assert "left out: 1 file, 39.1 KiB: big.txt (larger than --max-file)" in text


@each_row(
    ("args", "words"),
    [
        (["-o", "x.zip"], "no run is named"),
        ([ONE, "-o", "x.tar.gz"], "x.tar.gz is no name of an archive"),
        ([ONE, "-o", "there.zip"], "there.zip is there already"),
        ([ONE, "-o", "none/x.zip"], "none/x.zip cannot be written: No such file or directory"),
        (["nope", "-o", "x.zip"], "no run 'nope'"),
        (["--of", "2020", "-o", "x.zip"], "none of 0 runs"),
        ([ONE, "-o", "x.zip", "--max-file", "soup"], "'soup' is no size"),
    ],
)
def test_what_cannot_be_packed_is_said_in_a_sentence(place, capsys, args, words):
    Path("there.zip").write_text("")
    assert words in said(capsys, "archive", *args, code=4)
    assert not Path("x.zip").exists() and [*place.glob(".*.zip.*")] == []


def test_a_run_without_a_record_is_not_packed(place, capsys):
    (folder(place) / RECORD).unlink()
    assert "is not packed: it was cut off" in said(capsys, "archive", ONE, "-o", "x.zip", code=4)
    text = said(capsys, "archive", "2026*", "-o", "x.zip")
    assert f"left out: run {ONE}: it was cut off" in text and "1 run, " in text


def test_imported_runs_are_listed_as_imported_and_are_those_that_were_packed(place, capsys):
    said(capsys, "archive", "2026*", "-o", "x.zip")
    other = elsewhere(place)
    text = said(capsys, "import", "x.zip", "--dir", str(other))
    one, two = imported(other, ONE).name, imported(other, TWO).name
    assert f"{ONE}: taken in as {one}" in text and "2 runs taken in, 2 runs in x.zip" in text
    assert re.fullmatch("20260102T030405-tiny-[0-9a-f]{6}", one) and two.startswith("20260102T030500-tiny-")
    listed = json.loads(said(capsys, "runs", "--json", "--dir", str(other)))
    assert [(each["id"], each["doubt"], each["origin"]) for each in listed] == [(one, "", "x.zip"), (two, "", "x.zip")]
    assert "SUCCESS, imported" in said(capsys, "runs", "--dir", str(other))
    for name in (one, ONE):
        assert f"from x.zip, as {ONE}" in said(capsys, "show", name, "--dir", str(other))
    home = imported(other)
    assert (home / LOG).read_bytes() == (folder(place) / LOG).read_bytes()
    for name in (RECORD, PLAN):
        text = (home / name).read_text()
        assert text.replace(f'"id": "{one}"', f'"id": "{ONE}"') == (folder(place) / name).read_text()
    assert {each.name for each in (other / "madlite_runs").iterdir()} == {*(one, two, ".gitignore", "events.jsonl")}
    again = said(capsys, "import", "x.zip", "--dir", str(other))
    assert f"{ONE}: already here as {one}" in again and "0 runs taken in" in again
    assert f"{ONE}: already here" in said(capsys, "import", "x.zip")  # where the runs are from


def test_a_run_that_is_here_with_another_content_stays_and_the_others_come(place, capsys):
    said(capsys, "archive", "2026*", "-o", "x.zip")
    other = elsewhere(place)
    store(other, ONE, good(ONE, "2026-03-03T03:03:03+00:00"))
    before = (folder(other) / RECORD).read_bytes()
    text = said(capsys, "import", "x.zip", "--dir", str(other))
    assert f"{ONE}: already here" in text
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
    said(capsys, "archive", "2026*", "-o", "x.zip")
    other = elsewhere(place)
    said(capsys, "import", "x.zip", "--dir", str(other))
    one, two = (load_record(imported(other, run)) for run in (ONE, TWO))
    assert one is not None and two is not None and two.attempt is not None and one.attempt is not None
    assert (one.attempt.next, two.attempt.earlier[0].run, two.beside) == (two.id, one.id, (one.id, "other"))
    assert one.study is not None and {one.study.id, one.batch} == {f"{STUDY}-imported"}
    assert two.attempt.next == "20260102T030600-c-000003"
    assert two.rows is not None and two.rows.cells[0]["run"] == two.id
    before = tree(other / "madlite_runs")
    assert "0 runs taken in" in said(capsys, "import", "x.zip", "--dir", str(other))
    assert tree(other / "madlite_runs") == before


def tree(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def test_a_run_that_went_through_several_folders_is_known_by_its_first_id(place, capsys):
    said(capsys, "archive", ONE, "-o", "x.zip")
    other, third = elsewhere(place), place.parent / "third"
    third.mkdir()
    said(capsys, "import", "x.zip", "--dir", str(other))
    said(capsys, "archive", ONE, "-o", "y.zip", "--dir", str(other))
    here = imported(other).name
    assert f"{here}: already here as {ONE}" in said(capsys, "import", "y.zip")
    said(capsys, "import", "y.zip", "--dir", str(third))
    assert f"already here as {imported(third).name}" in said(capsys, "import", "x.zip", "--dir", str(third))


def test_an_import_that_goes_on_is_not_in_the_way_of_another(place, capsys):
    said(capsys, "archive", ONE, "-o", "x.zip")
    other = elsewhere(place)
    with open_runs(other, make=True) as runs, _staging_folder(runs) as beside:  # as long as it unpacks
        (beside.path / "part").write_text("x")
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(call, ["import", "x.zip", "--dir", str(other)]).result() == 0
        assert (beside.path / "part").exists() and imported(other).is_dir()
    assert not beside.path.exists()


def named(path: str, run: str = ONE) -> zips.Files:
    """Return an archive whose run has a second file of this name."""
    files = zips.small(run)
    manifest = json.loads(files["manifest.json"])
    manifest["runs"][0]["files"].append({"path": path, "bytes": 1, "sha256": "0" * 64})
    return {**files, "manifest.json": json.dumps(manifest).encode(), f"{run}/{path}": b"x"}


def submission() -> zips.Files:
    """Return an archive with what a submission has, as a run."""
    return zips.with_hashes(
        named("submission.json", "jobs-20261128T000000-abcdef") | {"jobs-20261128T000000-abcdef/submission.json": b"{}"}
    )


HOSTILE = {
    "a folder": (zips.small(), [f"{ONE}/x/"], "is not in its manifest"),
    "a file twice": (zips.small(), [f"{ONE}/record.json"], "a file is in it twice"),
    "a manifest twice": (zips.small(), ["manifest.json"], "cannot be read"),
    "a way out": (named("../../x"), [], "is outside of its folder"),
    "an absolute path": (named("/etc/x"), [], "is outside of its folder"),
    "a journal": (named("journal.jsonl"), [], "has a name that is not taken in"),
    "a lock": (named("lock"), [], "has a name that is not taken in"),
    "a hidden file": (named(".x"), [], "has a name that is not taken in"),
    "an escape": (named("\x1b[2Jx"), [], "has characters"),
    "a long name": (named("x" * 300), [], "has too long a name"),
    "a deep name": (named("x/" * 40 + "x"), [], "has too long a name"),
    "no id": (zips.small("../x"), [], "is no id of a run"),
    "a hidden run": (zips.small(".import-1"), [], "is no id of a run"),
    "the baselines": (zips.small("baselines"), [], "is no id of a run"),
    "a submission": (submission(), [], "is no id of a run"),
    **{
        f"{kind}…": (zips.small(f"{kind}20260102T030405-00000a"), [], "is no id of a run")
        for kind in ("study-", "check-", "batch-")
    },
    "a folder as first": (zips.small(first_id="jobs-20260102T030405-00000a"), [], "is no id of a run"),
    "a script": (zips.with_hashes(named("scripts/1.sh")), [], "is none that an archive has: no text"),
    "a kubeconfig": (zips.with_hashes(named("kubeconfig")), [], "is none that an archive has: no text"),
    "a newer format": (zips.small(format=9), [], "is of format 9"),
    "no manifest": ({"x": b""}, [], "it has no manifest.json"),
    "a manifest that is none": ({"manifest.json": b"[1"}, [], "cannot be read"),
    "another file": ({**zips.small(), f"{ONE}/more": b"x"}, [], "is not in its manifest"),
    "a changed file": ({**zips.small(), f"{ONE}/record.json": b"{}"}, [], "is not as it was packed"),
    "a missing file": ({"manifest.json": zips.small()["manifest.json"]}, [], "is missing"),
    "a record of another run": (
        zips.with_hashes({**zips.small(), f"{ONE}/record.json": b'{"id": "x", "status": "SUCCESS", "version": 2}'}),
        [],
        "is of run x",
    ),
    "a broken record": (zips.with_hashes({**zips.small(), f"{ONE}/record.json": b'{"id": 7'}), [], "record.json"),
}


def test_a_result_of_a_run_may_be_called_as_a_file_of_a_submission(place, capsys):
    names = ("submission.json", "events.jsonl")
    for name in names:
        (folder(place) / name).write_text("{}\n")
    said(capsys, "archive", "2*", "-o", "x.zip")
    other = elsewhere(place)
    said(capsys, "import", "x.zip", "--dir", str(other))
    assert [(imported(other) / name).read_text() for name in names] == ["{}\n", "{}\n"]
    assert imported(other, TWO).is_dir() and stored_submissions(other) == ()


def test_a_record_that_is_too_deep_for_its_ids_is_refused_before_any_run_is_taken_in(place, capsys):
    said(capsys, "archive", "2*", "-o", "x.zip")

    def import_nested(depth: int) -> tuple[int, Path]:
        nested = b'{"unknown": ' + b"[" * depth + b"]" * depth + b", "
        zips.changed(
            Path("x.zip"), Path("y.zip"), f"{TWO}/record.json", lambda data: data.replace(b"{", nested, 1), hashes=True
        )
        capsys.readouterr()
        other = place.parent / f"other-{depth}"
        other.mkdir()
        return call(["import", "y.zip", "--dir", str(other)]), other

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


def test_more_runs_than_an_archive_has_are_refused_before_anything_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = zips.small()
    manifest = json.loads(files["manifest.json"])
    (run,) = manifest["runs"]
    manifest["runs"] = [{**run, "id": f"run-{n}"} for n in range(20_000)]
    archive = zips.write(tmp_path / "x.zip", {"manifest.json": json.dumps(manifest).encode()})
    assert "x.zip has 20000 runs, more than 10000 runs" in said(capsys, "import", "x.zip", code=4)
    assert left_in(tmp_path) == {archive.name}


@each_row("what", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(tmp_path, capsys, monkeypatch, what):
    files, more, words = HOSTILE[what]
    monkeypatch.chdir(tmp_path)
    archive = zips.write(tmp_path / "x.zip", files, *more)
    text = said(capsys, "import", "x.zip", code=4)
    assert words in text and "\x1b" not in text
    assert left_in(tmp_path) == {archive.name}


@pytest.mark.host
def test_an_archive_that_is_cut_anywhere_leaves_nothing(place, capsys, monkeypatch):
    said(capsys, "archive", "2026*", "-o", "x.zip")
    whole, other = Path("x.zip").read_bytes(), elsewhere(place)
    monkeypatch.chdir(other)
    for cut in (*range(0, len(whole) - 8, max(1, len(whole) // 40)), len(whole) - 9):
        Path("x.zip").write_bytes(whole[:cut])
        assert "error: x.zip" in said(capsys, "import", "x.zip", code=4)
        assert left_in(other) == {"x.zip"}


@pytest.mark.host
def test_a_bomb_is_refused_before_it_is_written(tmp_path, monkeypatch):
    into = tmp_path / "into"
    into.mkdir()
    files = named("big")
    manifest = json.loads(files["manifest.json"])
    manifest["runs"][0]["files"][1]["bytes"] = 1 << 40
    claimed = zips.write(tmp_path / "a.zip", {**files, "manifest.json": json.dumps(manifest).encode()})
    manifest["runs"][0]["files"][1]["bytes"] = 1
    larger = {**files, "manifest.json": json.dumps(manifest).encode(), f"{ONE}/big": bytes(1 << 20)}
    with Folder.open(into) as folder:
        for archive, words in (
            (claimed, "unpacks to 1.0 TiB"),
            (zips.write(tmp_path / "b.zip", larger), "big' is not as it was packed"),
            (zips.write(tmp_path / "c.zip", zips.small(), kind=zipfile.ZIP_LZMA), "compressed otherwise"),
        ):
            with pytest.raises(UsageProblem, match=words):
                unpack(archive, folder, 1 << 20)
        assert not [*into.rglob("big")]
        monkeypatch.setattr(manifest_of_archive, "MAX_FILES", 0)
        with pytest.raises(UsageProblem, match="more than 0 files"):
            unpack(zips.write(tmp_path / "d.zip", zips.small()), folder, 1 << 20)


def test_an_import_removes_what_a_killed_one_left_and_leaves_one_that_goes_on(place, capsys):
    said(capsys, "archive", ONE, "-o", "x.zip")
    left, held = (place / f"madlite_runs/.import-{name}" for name in ("left", "held"))
    for folder_of in (left, held):
        folder_of.mkdir()
        (folder_of / RECORD).write_text("{}")
    with Folder.open(held) as beside:
        lock = beside.open_file(".lock")
        fcntl.flock(lock, fcntl.LOCK_EX)
        said(capsys, "import", "x.zip")
        assert held.exists() and not left.exists()
        os.close(lock)


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
    said(capsys, "archive", ONE, "-o", "x.zip")
    assert f"{ONE}/data/run.py" in zips.read(Path("x.zip"))

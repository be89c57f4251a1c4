"""Whatever a card, a workload or a file says, the terminal of who looks at it is not steered."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlite.cli.main import call
from madlite.cli.screens import PlainScreen
from madlite.cli.terminal import Sanitizer, printable_lines
from madlite.model import Card, Metric, Status, Study, to_json
from tests.cli.stored_runs import good, store
from tests.rows import each_row

# clipboard, title, 8-bit CSI, clear, a question whose answer is typed in, text turned around, nothing to be seen
EVIL = "a\x1b]52;c;ZXZpbA==\x07b\x1b]0;T\x1b\\c\x9b31md\x1b[2Je\x1b[6nf\u202eg\u2066h\u200bi\x08j\x7fk"
STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069]")
CARDS = [
    {
        "name": "m",
        "scripts": "scripts/m/run.sh",
        "dockerfile": "docker/base",
        "n_gpus": "-1",
        "tags": ["t", EVIL],
        "args": f"--x {EVIL}",
        "owner": EVIL,
        "url": "",
        "training_precision": EVIL,
        "unknown": {EVIL: EVIL},
    }
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "scripts/m").mkdir(parents=True)
    (tmp_path / "scripts/m/run.sh").write_text("true\n")
    (tmp_path / "models.json").write_text(json.dumps(CARDS))
    (tmp_path / "x.log").write_text(f"performance: 5 {EVIL.replace(' ', '')}\nRuntimeError: {EVIL}\n")
    (tmp_path / "y.csv").write_text(f"{EVIL}\n{EVIL},{EVIL}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@each_row(
    "words",
    [
        ["discover", "--tags", "t"],
        ["discover", "--tags", EVIL],
        ["discover", "--tags", "t", "--json"],
        ["explain", "m"],
        ["explain", "m", "--all", "--check"],
        ["explain", "m", "--json"],
        ["explain", "m", "--set", f"env.X={EVIL}"],
        ["explain", "m", "--additional-context", json.dumps({EVIL: EVIL})],
        ["run", "--tags", "m", "--runtime", "host", "--dry-run"],
        ["run", "--tags", "m", "--backend", EVIL],
        ["run", "--tags", "m", f"--{EVIL}"],
        ["run", "--tags", "m", "--manifest-file", EVIL],
        ["parse", "x.log"],
        ["parse", "x.log", "--json"],
        ["parse", EVIL],
        ["report", "to-html", "--csv-file-path", f"{EVIL}.csv"],
        ["report", "to-html", "--csv-file-path", "y.csv"],
        ["report", "update-perf", "--perf-csv", EVIL],
        [EVIL],
    ],
    ids=lambda words: " ".join(words)[:30].encode("unicode_escape").decode(),
)
def test_no_command_lets_an_escape_through(words: list[str], folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    call(words)
    out, err = capfd.readouterr()
    assert out + err
    assert STEERS.findall(out + err) == []


FORGED = "x\nFAKE OK line"
ONE, TWO = "20260102T030405-a-000001", "20260102T030500-b-000002"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a working folder with two runs of which every name has a line end, and an archive of them."""
    work = tmp_path_factory.mktemp("forged")
    card = Card(name=FORGED, root=work, source=FORGED, tags=(FORGED,))
    study = Study(id=FORGED, kind="sweep", series=1, index=1, count=2, varied={FORGED: FORGED})
    for run in (ONE, TWO):
        metric = Metric(metric=FORGED, text="12.5", status=Status.SUCCESS, value=12.5)
        result = good(run, metrics=(metric,), suspect=(FORGED,), findings=(FORGED,), reason=FORGED, beside=(FORGED,))
        changes = {"backend": FORGED, "batch": FORGED, "study": study, "settings": {FORGED: FORGED}, "args": FORGED}
        store(work, run, result, log=b"performance: 12.5 tps\n", card=card, **changes)
    (work / "perf.csv").write_text(f'model,performance,metric,status\n"{FORGED}",5,"{FORGED}",SUCCESS\n')
    assert call(["archive", "2026*", "-o", str(work / "x.tar.gz"), "--dir", str(work)]) == 0
    return work


@each_row(
    "words",
    [
        ["runs"],
        *(["runs", "--group", by] for by in ("study", "batch", "card")),
        ["runs", "--columns", "card,study,batch,backend"],
        ["show", ONE],
        ["show", ONE, TWO, "--all"],
        ["show", FORGED],
        ["verify", "2026*"],
        ["verify", "x.tar.gz"],
        ["clean", "--old", "--keep-last", "1"],
        ["clean", "--old", "--keep-last", "0", "--yes"],
        ["clean", "--old", "--keep-last", "0", "--all", "--yes"],
        ["archive", "2026*", "-o", "y.tar.gz"],
        ["archive", FORGED, "-o", "y.tar.gz"],
        ["import", "x.tar.gz"],
        ["import", "x.tar.gz", "--dir", "other", "--rows"],
        ["parse", ONE],
        ["log", ONE],
        ["reproduce", ONE],
        ["compare", ONE, TWO],
        ["compare", "perf.csv", "perf.csv"],
        ["compare", "perf.csv", "madlite_runs"],
        ["baseline", "save", "b"],
        ["report", "to-html"],
        ["report", "rebuild", "-o", "z.csv"],
        ["export", "--to", "jsonl", "-o", "z.jsonl"],
        ["clean"],
        ["runs", "collect"],
        ["cluster", "jobs"],
        ["runs", "--watch"],
        ["dashboard", FORGED],
        ["plan", FORGED],
    ],
    ids=" ".join,
)
def test_no_name_of_a_record_makes_up_a_line(
    words: list[str], records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    shutil.copytree(records, work, copy_function=shutil.copy2)
    (work / "other").mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{work}/none.sock")
    assert call(words) != 1
    out, err = capfd.readouterr()
    assert "internal error" not in err
    assert [line for line in (out + err).splitlines() if line.lstrip().startswith("FAKE")] == []


def test_json_with_such_text_is_the_same_value() -> None:
    assert json.loads(to_json({EVIL: [EVIL, "ü"]})) == {EVIL: [EVIL, "ü"]}
    assert "ü" in to_json("ü") and not STEERS.search(to_json(EVIL))


@given(st.text())
def test_lines_hold_nothing_that_is_not_printed(text: str) -> None:
    made = printable_lines(text)
    assert all(char.isprintable() or char in "\n\t" for char in made)
    assert made.count("\n") == text.count("\n")


@given(
    st.lists(st.sampled_from([*EVIL, EVIL, "\x1b", "[", "3", "1", "m", "K", "\r", "\n", "é", "\u202e"]), max_size=30)
)
def test_live_output_on_a_terminal_is_tamed_however_it_is_cut(pieces: list[str]) -> None:
    data = "".join(pieces).encode()
    tamer, whole = Sanitizer(), Sanitizer()
    made = b"".join(tamer.feed(data[at : at + 1]) for at in range(len(data)))
    assert made == whole.feed(data)
    text = re.sub(r"\x1b\[[0-9;]*[mKA]", "", made.decode())
    assert not re.search(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


def test_live_output_on_a_terminal_keeps_colours_and_progress_bars() -> None:
    data = b"\x1b[32m 50%|##\x1b[0m\r100%|####\n\x1b[A\x1b[2K\tdone \xc3\xbc\n"
    assert Sanitizer().feed(data) == data.replace(b"\x1b[2K", b"\x1b[2K")


class Sink:
    def __init__(self, is_terminal: bool) -> None:
        self.data, self._is_terminal = b"", is_terminal

    def put(self, data: bytes) -> None:
        self.data += data

    def write(self, text: str) -> int:
        self.data += text.encode()
        return len(text)

    def isatty(self) -> bool:
        return self._is_terminal


@each_row("is_terminal", [True, False])
def test_live_output_goes_into_a_pipe_byte_for_byte(is_terminal: bool) -> None:
    sink = Sink(is_terminal)
    screen = PlainScreen(sink, live=True)  # type: ignore[arg-type]
    data = EVIL.encode() + b"\xff\x9b\n"
    screen.output(data, 1)
    assert (sink.data == data) is not is_terminal
    assert (b"\x1b]52" in sink.data) is not is_terminal

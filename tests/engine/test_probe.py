"""What is asked where a workload runs, before it runs: by the probe's own text, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from madlite.backends.loader import Plugins
from madlite.errors import RuntimeProblem
from madlite.machine.host import Host
from madlite.machine.processes import run_processes
from madlite.model import Action, Chunk, Exit, FileTemplate, Place, Provenance, Result, Status
from madlite.plan.submission import PlannedRun
from madlite.platforms.host.runtime import HostRuntime
from madlite.run import probe_inside
from madlite.run.instrumentation import LIMIT_S, MOST_BYTES, Instrumentation, probe, read_answer
from tests.factories import make_plan
from tests.rows import each_row

COMMIT = "0123456789abcdef0123456789abcdef01234567"

ENDED = Exit(code=0, duration_s=0.1)


class FakeSession:
    handle = "x"

    def __init__(self, said: bytes = b"", code: int = 0, problem: str = "") -> None:
        self.said, self.code, self.problem = said, code, problem
        self.asked: list[Action] = []

    def run(self, action, out) -> Exit:
        self.asked.append(action)
        if self.problem:
            raise RuntimeProblem(self.problem)
        out(Chunk(data=b"noise on stderr", stream=2))
        out(Chunk(data=self.said))
        return Exit(code=self.code, duration_s=0.1)


def asked(tmp_path: Path, session: FakeSession, **plan: object) -> Provenance:
    return probe(session, make_plan(tmp_path, **plan), Action(kind="run", argv=("bash", "run.sh"), cwd="sub"))  # type: ignore[arg-type]


def answer(**told: object) -> bytes:
    return b"\n" + probe_inside.MARK.encode() + json.dumps(told).encode() + b"\n"


def test_it_is_asked_in_the_folder_of_the_run_and_in_time(tmp_path: Path) -> None:
    session = FakeSession(answer(packages={"torch": "2.9"}))
    assert asked(tmp_path, session).packages == {"torch": "2.9"}
    (action,) = session.asked
    assert (action.cwd, action.timeout_s, action.kind, action.argv[0]) == ("sub", LIMIT_S, "prepare", "sh")


def test_a_rendered_run_is_asked_by_its_own_python_and_a_card_s_script_by_python3(tmp_path: Path) -> None:
    session = FakeSession()
    asked(tmp_path, session)
    asked(tmp_path, session, id="other", templates=(FileTemplate(path="run.sh", template="x"),))
    script, rendered = (action.argv[2].splitlines()[1] for action in session.asked)
    assert script == 'python=$(command -v -- "python3")'
    assert rendered == 'python=$(command -v -- "${MADLITE_PYTHON:-python3}")'


@each_row(
    ("session", "note"),
    [
        (FakeSession(problem="container gone"), "the environment of the run could not be probed: container gone"),
        (FakeSession(b"sh: python3: not found", code=127), "there is no Python"),
        (FakeSession(b"Traceback", code=1), "the probe ended with exit code 1"),
        (FakeSession(answer(packages={"torch": 2})), "the probe ended with exit code 0"),
        (FakeSession(answer()[:-6], code=142), "the probe ended with exit code 142"),
        (FakeSession(answer(notes=["\udcff"]).replace(b'"\\udcff"', b'"\xff"')), "the probe ended with exit code 0"),
    ],
)
def test_whatever_goes_wrong_is_a_note(tmp_path: Path, session: FakeSession, note: str) -> None:
    inside = asked(tmp_path, session)
    assert note in inside.notes[0] and inside.packages == {}


def test_an_answer_among_noise_and_without_end(tmp_path: Path) -> None:
    noise = b"sitecustomize says hello" + answer(inside={"os": "Some Linux"}) + b"bye"
    assert asked(tmp_path, FakeSession(noise)).inside == {"os": "Some Linux"}
    assert asked(tmp_path, FakeSession(b"x" * (MOST_BYTES + 9) + answer()), id="b").notes != ()
    assert read_answer(answer(inside={"os": "a"}) + answer(inside={"os": "b"}), ENDED).inside == {"os": "b"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return (tmp_path / "made").resolve()


def files(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        place = folder / name.replace("__", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def head_of(folder: Path) -> str:
    return probe_inside.head(folder)


def test_a_commit_by_git_s_files(folder: Path) -> None:
    git = folder / ".git"
    files(git, HEAD=f"{COMMIT}\n")
    assert head_of(folder) == COMMIT
    files(git, HEAD="ref: refs/heads/main\n")
    assert head_of(folder) == ""
    (git / "packed-refs").write_text(f"# pack-refs\n{'a' * 40} refs/heads/mainly\n{COMMIT} refs/heads/main\n")
    assert head_of(folder) == COMMIT
    files(git, refs__heads__main=f"{'b' * 40}\n")
    assert head_of(folder) == "b" * 40


def test_a_pipe_in_place_of_git_s_files_is_not_waited_for(folder: Path) -> None:
    (folder / ".git").mkdir(parents=True)
    os.mkfifo(folder / ".git/HEAD")
    assert head_of(folder) == ""


def test_a_worktree_s_commit(folder: Path) -> None:
    files(folder / "repo/.git", packed_refs="x", refs__heads__side=f"{COMMIT}\n")
    files(folder / "repo/.git/worktrees/w", HEAD="ref: refs/heads/side\n", commondir="../..\n")
    files(folder / "w")
    (folder / "w").mkdir()
    (folder / "w/.git").write_text(f"gitdir: {folder}/repo/.git/worktrees/w\n")
    assert head_of(folder / "w") == COMMIT


def test_repositories_around_and_below(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_inside.shutil, "which", lambda name: None)
    for place in ("a", "a/sub/run", "below/x", "below/y/z", "below/y/z/inner", "below/1/2/3", "below/.hidden"):
        (folder / place).mkdir(parents=True)
    for place in ("a", "below/x", "below/y/z", "below/y/z/inner", "below/1/2/3", "below/.hidden"):
        files(folder / place / ".git", HEAD=COMMIT)
    (folder / "below/again").symlink_to(folder / "below/x")
    found = probe_inside.repositories([str(folder / "a/sub/run")], [str(folder / "below"), str(folder / "none")])
    assert sorted(found) == [str(folder / place) for place in ("a", "below/x", "below/y/z")]
    assert set(found.values()) == {COMMIT}


@pytest.mark.parametrize(("git", "why"), [(None, "without git"), ("/usr/bin/git", "git failed")])
def test_what_nobody_could_look_at_is_not_told_as_unchanged(
    folder: Path, monkeypatch, git: str | None, why: str
) -> None:
    files(folder / "a/.git", HEAD=COMMIT)  # which is no repository to git: as one that it finds is somebody else's
    monkeypatch.setattr(probe_inside.shutil, "which", lambda name: git)
    notes: list[str] = []
    assert probe_inside.repositories([str(folder / "a")], [], notes) == {str(folder / "a"): COMMIT}
    assert notes == [f"{folder / 'a'}: whether it is changed is not known, {why}"]


def test_a_long_value_ends_with_a_whole_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_X", "a" * 490 + ":hf_0123456789abcdef")
    assert probe_inside.environment(["NCCL_X"], []) == {"NCCL_X": "a" * 490 + ":"}
    assert probe_inside.shortened("hf_" + "b" * 498) == "***", "half of it would not be known for what it is"
    assert probe_inside.shortened("b" * 500) == "b" * 500
    assert probe_inside.shortened("a b " * 125) == "a b " * 125


def test_repositories_of_a_folder_with_any_name(tmp_path: Path) -> None:
    inside = (tmp_path / "Übung 😀'\"").resolve()
    files(inside / "titan/.git", HEAD=COMMIT)
    session = FakeSession()
    asked(tmp_path, session, place=Place(), inside=str(inside), id="r1")
    words = session.asked[0].argv[4:]
    done = subprocess.run([sys.executable, "-B", "-c", words[0], words[1], words[0]], capture_output=True, check=True)
    told = read_answer(done.stdout, ENDED)
    assert told.repositories[str(inside / "titan")] == COMMIT


def test_a_variable_that_is_no_text_costs_nothing_else(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(probe_inside.signal, "alarm", lambda seconds: None)
    monkeypatch.setenv("NCCL_ODD", "a\udcffb")  # the byte FF
    probe_inside.main({"packages": [], "prefixes": ["NCCL_ODD"], "names": [], "up": [], "below": []})
    assert read_answer(capsys.readouterr().out.encode(), ENDED).environment == {"NCCL_ODD": "a?b"}


def test_the_search_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(6):
        files(folder / f"{n}/.git", HEAD=COMMIT)
    monkeypatch.setattr(probe_inside, "MOST_REPOSITORIES", 2)
    assert len(probe_inside.repositories([], [str(folder)])) == 2
    monkeypatch.setattr(probe_inside, "MOST_FOLDERS", 1)
    assert probe_inside.repositories([], [str(folder)]) == {}
    assert probe_inside.run_git(folder, 0.0, "status") is None


def test_torch_is_read_and_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files(tmp_path, torch____init____py="", torch__x="")
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch/version.py").write_text(
        "__version__ = '2.8.0+rocm6.4'\ndebug = False\ncuda: Optional[str] = None\n"
        "git_version = 'ba56102387ef21a3b04b357e5b183d48f0afefc7'\nhip: Optional[str] = '6.4.43484-123eb5128'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    told = probe_inside.torch()
    assert told == {"torch.git": "ba56102387ef21a3b04b357e5b183d48f0afefc7", "torch.hip": "6.4.43484-123eb5128"}


def test_the_system_says_what_it_has() -> None:
    told = probe_inside.system()
    assert told["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}.") and "" not in told.values()
    assert probe_inside.read("/etc/os-release") == "" or told["os"]


def test_versions_and_commits_of_distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, origin in (("one", ""), ("two", json.dumps({"vcs_info": {"commit_id": COMMIT}})), ("three", "[broken")):
        info = tmp_path / f"{name}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        if origin:
            (info / "direct_url.json").write_text(origin)
    monkeypatch.syspath_prepend(str(tmp_path))
    told = probe_inside.packages(["one", "two", "three", "not-installed-anywhere"])
    assert {name: told.get(name) for name in ("one", "two", "three")} == {
        "one": "1.5",
        "two": f"1.5 (commit {COMMIT})",
        "three": "1.5",
    }
    assert "not-installed-anywhere" not in told


def test_a_part_that_cannot_be_asked_is_a_note(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(probe_inside.signal, "alarm", lambda seconds: None)
    monkeypatch.setattr(probe_inside, "system", lambda: 1 / 0)
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    probe_inside.main({"packages": [], "prefixes": ["NCCL_"], "names": [], "up": [], "below": []})
    inside = read_answer(capsys.readouterr().out.encode(), ENDED)
    assert inside.notes == ("inside: ZeroDivisionError: division by zero",)
    assert inside.environment["NCCL_DEBUG"] == "WARN"


def program(place: Path, text: str) -> str:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.chmod(0o755)
    return str(place)


def named_python(tmp_path: Path, python: str) -> tuple[Provenance, list[Path]]:
    """Ask by the Python that a variable names, in a real process; return what it told and what it left."""
    workspace = tmp_path / "w"
    plan = make_plan(workspace, id=f"probe-{os.getpid()}", templates=(FileTemplate(path="run.sh", template="x"),))
    before = set(workspace.rglob("*"))
    with HostRuntime({**os.environ, "MADLITE_PYTHON": python}).open(plan) as session:
        inside = probe(session, plan, Action(kind="run", argv=("true",)))
        assert not [process for process in run_processes(plan.id, plan.folder) if process.name == "sleep"]
    return inside, sorted(set(workspace.rglob("*")) - before)


@pytest.mark.host
@pytest.mark.parametrize("name", ["train", "python.sh", "my-python3", "torchrun", "python_wrapper", "linked"])
def test_a_stand_in_that_trains_whatever_it_is_asked_is_not_started(tmp_path: Path, name: str) -> None:
    python = program(tmp_path / "bin" / name, "#!/bin/sh\ntouch trained\nsleep 20\n")
    if name == "linked":
        (tmp_path / "python3").symlink_to(python)
        python = str(tmp_path / "python3")
    inside, left = named_python(tmp_path, python)
    assert left == [] and inside.notes == () and inside.inside["python"]


@pytest.mark.host
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_python_that_a_variable_names_is_the_one_that_is_asked(tmp_path: Path, wrapped: bool) -> None:
    python = sys.executable
    if wrapped:
        python = program(tmp_path / "bin/python", f'#!/bin/sh\nWRAPPED=1 exec {sys.executable} "$@"\n')
    inside, left = named_python(tmp_path, python)
    assert inside.notes == () and left == []
    assert inside.inside["python"].endswith(f"({sys.executable})")


def test_switched_off_nothing_is_asked(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, probe=False)
    session = FakeSession()
    one = PlannedRun(plan=plan, backends=(), files=(), runtime=HostRuntime({}))
    senses = Instrumentation(one, Plugins(), Host(), lambda: 0.0)
    senses.probe(session, Action(kind="run", argv=("x",)))
    told = senses.annotate(Result(plan_id="1", status=Status.SUCCESS)).provenance
    assert session.asked == [] and told.notes == ("the environment of the run was not probed: probe is switched off",)


@pytest.mark.host
def test_in_a_real_process_it_leaves_nothing_behind_and_trips_over_no_file_of_the_workspace(tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    plan = make_plan(workspace)
    for name in ("json", "re", "subprocess"):
        (workspace / f"{name}.py").write_text("raise SystemExit(7)\n")
    (workspace / "tracked").write_text("1")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(workspace)]
    for words in (["init", "-q"], ["add", "tracked"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    (workspace / "tracked").write_text("2")
    before = sorted(path for path in workspace.rglob("*"))
    with HostRuntime({**os.environ, "NCCL_DEBUG": "INFO"}).open(plan) as session:
        inside = probe(session, plan, Action(kind="run", argv=("true",)))
    assert inside.notes == ()
    assert inside.repositories[str(workspace.resolve())].endswith(" (changed)")
    assert inside.environment["NCCL_DEBUG"] == "INFO" and inside.inside["python"][0] == "3"
    assert sorted(path for path in workspace.rglob("*")) == before


@pytest.mark.host
def test_a_probe_that_hangs_is_ended_and_the_session_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from madlite.run import instrumentation as module

    plan = make_plan(tmp_path / "w")
    monkeypatch.setattr(module, "LIMIT_S", 0.5)
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(module.probe_inside, "__file__", str(tmp_path / "slow.py"))
    said: list[bytes] = []
    with HostRuntime(dict(os.environ)).open(plan) as session:
        assert probe(session, plan, Action(kind="run", argv=("true",))).notes != ()
        ended = session.run(Action(kind="run", argv=("echo", "on")), lambda chunk: said.append(chunk.data))
    assert (ended.code, b"".join(said)) == (0, b"on\n")

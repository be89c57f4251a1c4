"""Scripts run with stubs in the places of programs: nothing else of them runs, and nothing of it is left behind."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys

import pytest

from madlite.process import capture
from tests.kit import quoting
from tests.kit.quoting import Oddity
from tests.rows import each_row
from tests.waiting import wait_until

pytestmark = pytest.mark.host
NOT_REWRITTEN = "a script of which the rewriting finds nothing at all"


@pytest.fixture(params=["rewritten", NOT_REWRITTEN])
def how(request, monkeypatch):
    """Run rewritten scripts, and raw ones, as if the rewriting had missed everything."""
    if request.param == NOT_REWRITTEN:
        leave_raw(monkeypatch)
    return request.param


def leave_raw(monkeypatch):
    """Have scripts run as they are."""
    monkeypatch.setattr(quoting, "_instead", lambda found: found[0])


def run(place, text, *, inverted=False):
    """Return what a script calls that lies in a folder, beside what it sources."""
    files = {path.name: path.read_bytes() for path in place.glob("*.sh")}
    (calls,) = quoting.calls_of([{**files, "run.sh": text.encode()}], place)
    return calls[inverted]


@each_row("inverted", [False, True])
@each_row(
    "line",
    [
        "/bin/touch CANARY",
        "/usr/bin/env touch CANARY",
        '"/bin/touch" CANARY',
        "echo hi > CANARY",
        "echo hi >> CANARY",
        "{ echo hi; } &> CANARY",
        ": >| CANARY",
        "exec 3<> CANARY",
        '[ -n "$CLEAN" ] && /bin/touch CANARY',
        '[ -z "$CLEAN" ] && /bin/touch CANARY',
        'if [ -d "$CLEAN" ]; then echo > CANARY; fi',
        "builtin exec /bin/touch CANARY",
        "builtin command /bin/touch CANARY",
        "command -p touch CANARY",
        "PATH=/bin; touch CANARY",
        "export PATH=/usr/bin:/bin\ntouch CANARY",
        "hash -p /bin/touch t; t CANARY",
        "eval '/bin/touch CANARY; : > CANARY'",
        "x=/bin/touch; $x CANARY",
        "builtin set +r; : > CANARY",
        "unset -f command_not_found_handle note exec; exec touch CANARY",
        "builtin enable exec; builtin exec touch CANARY",
        "trap '/bin/touch CANARY' EXIT",
        "(/bin/touch CANARY) & wait",
        ": $(/bin/touch CANARY) `/bin/touch CANARY` <(/bin/touch CANARY)",
    ],
)
def test_nothing_of_a_script_runs(tmp_path, how, line, inverted):
    place = tmp_path / "run"
    place.mkdir()
    run(place, line.replace("CANARY", str(tmp_path / "canary")) + "\n", inverted=inverted)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@each_row("inverted", [False, True])
def test_a_file_that_is_there_keeps_its_content(tmp_path, how, inverted):
    (tmp_path / "data").write_text("kept")
    place = tmp_path / "run"
    place.mkdir()
    line = f'echo x > {tmp_path}/data; [ -n "$CLEAN" ] && /bin/rm -rf {tmp_path}/data\n'
    run(place, line, inverted=inverted)
    assert (tmp_path / "data").read_text() == "kept"


def test_nobody_else_s_process_is_ended(tmp_path, how):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        run(tmp_path, f"kill -9 {other.pid}; builtin kill -9 {other.pid}; /bin/kill -9 {other.pid}\n")
        assert other.poll() is None
        other.communicate(b"\n")
    assert other.returncode == 0


def test_what_is_called_is_told_with_its_words_in_both_branches(tmp_path):
    text = '/bin/rm -rf "a b"\necho hi > "c d"\nif [ -n "$CLEAN" ]; then "$root/clean" e; fi\n'
    text += "python3 - <<EOF\nf $((1 + 1))\nEOF\nset -eu\nset -- a 'b c'\nname=\"$*\"\n"
    straight, inverted = run(tmp_path, text), run(tmp_path, text, inverted=True)
    told = [("/bin/rm", "-rf", "a b"), ("echo", "hi"), ("python3", "-"), ("<<", "python3", "f 2\n")]
    assert [words for words in straight.commands if words[0] != "variable"] == told
    assert ("variable", "name", "a b c") in straight.commands
    assert ("/clean", "e") in inverted.commands
    assert straight.finished and inverted.finished


@each_row(
    ("text", "told"),
    [
        ("a b 2>/dev/null >&2 | c > d", {("a", "b"), ("c",)}),
        ("{ a; } &> b; exec 4>&- 3<>c; d >| e >>f", {("a",), ("d",)}),
        ("[[ a < b && ( c > d ) ]] || e\nif (( 2 > 1 )); then f; fi\ng $((1 > 0))", {("e",), ("f",), ("g", "1")}),
        ('while read -r a; do b "$a"; done < <(c; echo 1)', {("c",), ("echo", "1"), ("b", "1")}),
        ("case $a in /*) b ;;\n  */*) c ;;\n  *) $d/e ;; esac", {("/e",)}),
        ("f() { /a; }\nfunction g { ./b; }\nf; g", {("/a",), ("./b",)}),
        (": ${a:?is not set} ${b?}\nPATH=/a:$PATH c\nexport PATH=/d", {("c",)}),
        ('A=b "$c/d" e; f --g=1 2', {("/d", "e"), ("f", "--g=1", "2")}),
        ("a $$ $!", {("a", "4", "4")}),
        ("a b \\\n  /c 'd > e'", {("a", "b", "/c", "d  203<<<e")}),
        (
            "/a <<E\n$(/b > c)\nE\nd <<'E'\n$(e)\nE",
            {("/a",), ("/b",), ("<<", "/a", "\n"), ("d",), ("<<", "d", "$(e)\n")},
        ),
    ],
)
def test_files_and_paths_keep_no_command_from_being_told(tmp_path, text, told):
    found = run(tmp_path, f"{text}\n")
    assert {words for words in found.commands if words[0] != "variable"} == told
    assert found.finished


def test_no_odd_value_is_rewritten():
    one = Oddity("env.NAME", ["EOF"])
    for text in (one.value, shlex.quote(one.value), f"x=({shlex.quote(one.value)})\n"):
        assert quoting._rewritten(text.encode(), is_main=False).decode() == f"\n{text}\n"


def test_a_script_that_is_sourced_is_run_too(tmp_path):
    (tmp_path / "more.sh").write_text("train more > x\n")
    assert ("train", "more") in run(tmp_path, '. ./more.sh\nsource "$here/none.sh"\n').commands


@each_row(
    "loop",
    [
        "while true; do nvidia-smi; sleep 5; done & mon=$!; trap 'kill \"$mon\"' EXIT",
        "(while :; do :; done) & disown",
        "tail -f log | while true; do :; done &",
        "exec 4> >(while true; do :; done)",
    ],
)
def test_what_goes_on_in_the_background_ends_with_the_script(tmp_path, loop):
    found = run(tmp_path, f"{loop}\ntrain a\n")
    assert found.finished and ("train", "a") in found.commands
    wait_until(lambda: left(tmp_path) == [])  # what was killed lets go of its files a moment before it is gone


@each_row("text", ["while true; do train; done\n", "read -r x < ../kit_alive\n", "train 'open\n", "builtin exit\n"])
def test_a_script_without_an_end_is_not_whole(tmp_path, monkeypatch, text):
    monkeypatch.setattr(quoting, "LIMIT_S", 0.5)
    leave_raw(monkeypatch)
    assert not run(tmp_path, text).finished
    wait_until(lambda: left(tmp_path) == [])


def test_the_notes_of_an_endless_loop_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(quoting, "LIMIT_S", 6.0)  # it ends by nothing else
    found = run(tmp_path, f"while true; do echo {'x' * 100_000}; done &\nwhile true; do train; done\n")
    assert 0 < found.commands.count(("train",)) <= 20
    assert len(found.commands) < (32 << 20) // 4096  # a long note goes out in pieces, with others between them
    assert (tmp_path / "stubs/kit0.straight").stat().st_size <= 32 << 20


def test_what_loops_ends_soon_after_the_one_who_tests(tmp_path):
    code = (
        "from pathlib import Path; from tests.kit import quoting; quoting.LIMIT_S = 600.0; "
        f"quoting.calls_of([{{'run.sh': b'train started; while true; do :; done'}}], Path({str(tmp_path)!r}))"
    )
    notes = tmp_path / "stubs/kit0.straight"
    with subprocess.Popen([sys.executable, "-c", code]) as tester:
        wait_until(lambda: notes.exists() and b"started" in notes.read_bytes())
        assert left(tmp_path) != []
        tester.send_signal(signal.SIGKILL)
    wait_until(lambda: left(tmp_path) == [])


def left(place):
    """Return the processes whose command line names a folder."""
    listed = capture(["ps", "-wweo", "pid=,stat=,args="], limit_s=120).stdout.splitlines()
    return [line for line in listed if str(place / "stubs") in line and line.split()[1][0] != "Z"]

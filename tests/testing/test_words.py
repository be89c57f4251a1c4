"""Scripts are read without anything of them being run, and nothing of the reading is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from madlite.process import capture
from madlite.testing import taming, words
from madlite.testing.words import words_of
from tests.waiting import wait_until

pytestmark = pytest.mark.host
NOT_UNDERSTOOD = "a script that the taming does not understand at all"


@pytest.fixture(params=["tamed", NOT_UNDERSTOOD])
def how(request, monkeypatch):
    """Read tamed scripts, and raw ones, as if the taming had missed everything."""
    if request.param == NOT_UNDERSTOOD:
        monkeypatch.setattr(words, "tame", lambda text: taming.Tamed(text=text, documents=()))
    return request.param


def read(place, text, **ways):
    (place / "run.sh").write_text(text)
    return words_of(place / "run.sh", place, **ways)


@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize(
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
    read(place, line.replace("CANARY", str(tmp_path / "canary")) + "\n", inverted=inverted)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("inverted", [False, True])
def test_a_file_that_is_there_keeps_its_content(tmp_path, how, inverted):
    (tmp_path / "data").write_text("kept")
    place = tmp_path / "run"
    place.mkdir()
    line = f'echo x > {tmp_path}/data; [ -n "$CLEAN" ] && /bin/rm -rf {tmp_path}/data\n'
    read(place, line, inverted=inverted)
    assert (tmp_path / "data").read_text() == "kept"


def test_nobody_else_s_process_is_ended(tmp_path, how):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        read(tmp_path, f"kill -9 {other.pid}; builtin kill -9 {other.pid}; /bin/kill -9 {other.pid}\n")
        assert other.poll() is None
        other.communicate(b"\n")
    assert other.returncode == 0


def test_the_words_of_what_is_not_run_are_read(tmp_path):
    text = '/bin/rm -rf "a b"\necho hi > "c d"\nif [ -n "$CLEAN" ]; then "$root/clean" e; fi\n'
    text += "python3 - <<EOF\nf $((1 + 1))\nEOF\n"
    straight, inverted = read(tmp_path, text), read(tmp_path, text, inverted=True)
    told = [("/bin/rm", "-rf", "a b"), (">", "c d"), ("echo", "hi"), ("python3", "-"), ("<<", "python3", "f 2\n")]
    assert [one for one in straight.commands if one[0] not in ("export", "variable")] == told
    assert ("/clean", "e") in inverted.commands
    assert straight.whole and inverted.whole
    assert straight.documents == ("f $((1 + 1))\n",)


def test_a_script_that_is_sourced_is_read_too(tmp_path):
    (tmp_path / "more.sh").write_text("train more > x\n")
    assert ("train", "more") in read(tmp_path, '. ./more.sh\nsource "$here/none.sh"\n').commands


@pytest.mark.parametrize(
    "loop",
    [
        "while true; do nvidia-smi; sleep 5; done & mon=$!; trap 'kill \"$mon\"' EXIT",
        "(while :; do :; done) & disown",
        "tail -f log | while true; do :; done &",
        "exec 4> >(while true; do :; done)",
    ],
)
def test_what_goes_on_in_the_background_ends_with_the_script(tmp_path, loop):
    found = read(tmp_path, f"{loop}\ntrain a\n")
    assert found.whole and ("train", "a") in found.commands
    wait_until(lambda: left(tmp_path) == [])  # what was killed lets go of its files a moment before it is gone


@pytest.mark.parametrize(
    "text", ["while true; do train; done\n", "read -r x < pipe\n", "train 'open\n", "builtin exit\n"]
)
def test_a_script_without_an_end_is_not_whole(tmp_path, monkeypatch, text):
    monkeypatch.setattr(words, "LIMIT_S", 0.5)
    monkeypatch.setattr(words, "tame", lambda text: taming.Tamed(text=text, documents=()))
    os.mkfifo(tmp_path / "pipe")
    assert not read(tmp_path, text).whole
    wait_until(lambda: left(tmp_path) == [])


def test_the_notes_of_an_endless_loop_are_bounded(tmp_path):
    found = read(tmp_path, f"while true; do echo {'x' * 100_000}; done &\nwhile true; do train; done\n")
    assert 0 < found.commands.count(("train",)) <= 20
    assert len(found.commands) < (32 << 20) // 4096  # a long note goes out in pieces, with others between them
    assert (tmp_path / "kit_words").stat().st_size <= 32 << 20


def test_it_ends_with_the_one_who_tests(tmp_path):
    (tmp_path / "run.sh").write_text("train started\nwhile true; do :; done\n")
    code = (
        "from pathlib import Path; from madlite.testing import words; words.LIMIT_S = 60.0; "
        f"place = Path({str(tmp_path)!r}); words.words_of(place / 'run.sh', place)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as tester:
        wait_until(lambda: (tmp_path / "kit_words").exists() and b"started" in (tmp_path / "kit_words").read_bytes())
        assert left(tmp_path) != []
        tester.send_signal(signal.SIGKILL)
    wait_until(lambda: left(tmp_path) == [])


def left(place):
    """Return the processes whose command line names a folder."""
    listed = capture(["ps", "-wweo", "pid=,stat=,args="], limit_s=20).stdout.splitlines()
    return [line for line in listed if str(place / "kit_words") in line and line.split()[1][0] != "Z"]

"""`madlite bisect`: whole commands over commits, recipe files and images, cut off and resumed."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import commands
from tests.engine.checkout import UNPROBED, Checkout
from tests.waiting import wait_until

# a number that falls by 3 % from item 4 on, with 0.5 % of noise; item 3 does not work
RUN = """n=$(cat "$NUMBER_FILE")
[ "$n" = 3 ] && { echo "this one does not build"; exit 7; }
v=10000; [ "$n" -ge 4 ] && v=9700
echo "performance: $(( v + RANDOM % 50 )) samples/s"
"""
COUNT = 8
NUMBERS = (2, 3, 4)  # what a bisect of all of them ends with


def repository(folder: Path, count: int = COUNT) -> list[str]:
    """Make a repository in which `number` counts up by a commit each; return the commits."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.com", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout

    folder.mkdir()
    git("init", "-q")
    for number in range(count):
        (folder / "number").write_text(f"{number}\n")
        git("add", ".")
        git("commit", "-q", "-m", f"number {number}")
    return git("rev-list", "--reverse", "HEAD").split()


def bisect(checkout: Checkout, *words: str) -> subprocess.CompletedProcess[str]:
    return checkout.madlite("bisect", "one", "--runtime", checkout.runtime, *UNPROBED, *words)


def start(checkout: Checkout, *words: str) -> commands.Started:
    options = ("--runtime", checkout.runtime, *UNPROBED, *words)
    return commands.start(("bisect", "one", *options), checkout.folder, checkout.env)


def summary(checkout: Checkout) -> dict:
    (file,) = checkout.folder.glob("madlite_runs/study-*/study.json")
    return json.loads(file.read_text())


def test_commits_are_bisected_without_touching_the_users_clone(on_host: Checkout, tmp_path: Path):
    on_host.card("one", "NUMBER_FILE=$MADLITE_REPOSITORY/number\n" + RUN)
    commits = repository(tmp_path / "repo")
    (tmp_path / "repo/number").write_text("mine, not committed\n")
    done = bisect(on_host, "--repository", str(tmp_path / "repo"), "--good", "HEAD~7", "--bad", "HEAD")
    assert done.returncode == 0, done.stdout + done.stderr
    found = summary(on_host)
    assert (found["last_good"], found["first_bad"]) == (commits[2][:12], commits[4][:12])
    assert found["candidates"] == [commits[3][:12]] and "the first bad one is one of" in done.stdout
    assert [one["standing"] for one in found["items"]][2:5] == ["good", "untestable", "bad"]
    assert "exit_code" in found["items"][3]["failures"][0] and found["items"][1]["note"] == "number 1"
    assert -0.035 < found["change"] < -0.025 and found["metric"] == "samples/s"
    assert len(on_host.rows) == found["runs"] == len(on_host.records()), "ordinary runs with rows of their own"
    (study,) = (one["study"] for one in on_host.records() if (one["study"]["series"], one["study"]["index"]) == (1, 1))
    assert (study["kind"], study["varied"]) == ("bisect", {"commit": commits[0][:12]})
    assert (tmp_path / "repo/number").read_text() == "mine, not committed\n"
    assert not [*on_host.folder.glob("madlite_runs/*/repository")]
    on_host.assert_nothing_left()


def test_a_killed_bisect_of_recipe_files_goes_on_and_repeats_no_run(on_host: Checkout):
    pause = '[ -e ../pause ] && [ "$(ls .. | grep -c ^ran)" -ge 10 ] && echo begun $$ && sleep 300\n'
    on_host.card("one", f"echo > ../ran-$MADLITE_RUN_ID\n{pause}NUMBER_FILE=../numbers/$ITEM\n" + RUN)
    (on_host.folder / "numbers").mkdir()
    (on_host.folder / "pause").touch()
    names = []
    for number in range(COUNT):
        (on_host.folder / f"numbers/{number}").write_text(f"{number}\n")
        text = f'[recipe]\ntag = "one"\nbackend = "script"\n[recipe.set]\nenv.ITEM = "{number}"\n'
        (on_host.folder / f"{number}.toml").write_text(text)
        names.append(f"{number}.toml")
    words = ("--between", ",".join(names), "--bad", "7.toml", "--fail-on", "regression>2%")
    started = start(on_host, *words)
    on_host.wait_for("begun")
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    before = {one["id"]: one for one in on_host.records()}
    assert len(before) == 9
    (on_host.folder / "pause").unlink()
    other = bisect(on_host, *words[:-1], "regression>1%", "--resume")
    assert other.returncode == 4 and "fail-on" in other.stderr, "another search"
    recipe = on_host.folder / "0.toml"
    begun_with = recipe.read_text()
    recipe.write_text(begun_with.replace('"0"', '"1"'))
    changed = bisect(on_host, *words, "--resume")
    assert changed.returncode == 4 and "another plan of 0.toml" in changed.stderr, changed.stderr
    recipe.write_text(begun_with)
    done = bisect(on_host, *words, "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "goes on after 9 runs" in done.stdout
    found = summary(on_host)
    assert (found["last_good"], found["first_bad"], found["candidates"]) == ("2.toml", "4.toml", ["3.toml"])
    after = {one["id"]: one for one in on_host.records()}
    cut_off = [one for one in after.values() if one["cause"] == "interrupted"]
    assert len(cut_off) == 1 and len(after) == found["runs"] + 1
    assert all(after[name] == one for name, one in before.items())
    again = bisect(on_host, *words, "--resume")
    assert again.returncode == 0 and len(on_host.records()) == len(after), "it had ended: nothing is left to run"
    assert "last good 2.toml" in again.stdout


@pytest.mark.full
def test_an_item_whose_attempts_all_fail_for_what_passes_is_known_to_resume(on_host: Checkout):
    hub = "echo 'HfHubHTTPError: 503 Server Error: Service Temporarily Unavailable for url: h' >&2"
    on_host.card("one", f"[ $ITEM = 1 ] && {{ {hub}; exit 1; }}\necho performance: $((ITEM < 2 ? 9 : 5)) x\n")
    names = []
    for number in range(4):
        text = f'[recipe]\ntag = "one"\nbackend = "script"\n[recipe.set]\nenv.ITEM = "{number}"\n'
        (on_host.folder / f"{number}.toml").write_text(text)
        names.append(f"{number}.toml")
    words = ("--between", ",".join(names), "--retry", "1", "--retry-wait", "0")
    assert bisect(on_host, *words).returncode == 0
    found, ran = summary(on_host), len(on_host.records())
    assert (found["last_good"], found["first_bad"], found["candidates"]) == ("0.toml", "2.toml", ["1.toml"])
    again = bisect(on_host, *words, "--resume")
    assert again.returncode == 0 and len(on_host.records()) == ran, again.stdout + again.stderr
    assert summary(on_host)["candidates"] == ["1.toml"]


def test_a_full_disk_ends_a_bisect_and_is_no_item_s_failure(on_host: Checkout):
    full = "[ -e ../full ] && { echo \"cp: error writing 'x': No space left on device\"; exit 1; }\n"
    on_host.card("one", f'[ "$ITEM" = 4 ] || [ "$ITEM" = 3 ] && {full}NUMBER_FILE=../numbers/$ITEM\n' + RUN)
    (on_host.folder / "numbers").mkdir()
    (on_host.folder / "full").touch()
    for number in NUMBERS:
        (on_host.folder / f"numbers/{number}").write_text(f"{number}\n")
        text = f'[recipe]\ntag = "one"\nbackend = "script"\n[recipe.set]\nenv.ITEM = "{number}"\n'
        (on_host.folder / f"{number}.toml").write_text(text)
    words = ("--between", ",".join(f"{number}.toml" for number in NUMBERS), "--fail-on", "regression>2%")
    done = bisect(on_host, *words)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "stopped, the machine ended the last run, which counts for nothing: " in done.stdout
    assert "--resume=" in done.stdout and not summary(on_host)["conclusion"]
    assert [one["cause"] for one in on_host.records() if one["status"] == "FAILURE"] == ["disk_full"]
    before = len(on_host.records())
    (on_host.folder / "full").unlink()
    done = bisect(on_host, *words, "--resume")
    assert done.returncode == 0 and len(on_host.records()) > before, done.stdout + done.stderr
    found = summary(on_host)
    assert (found["last_good"], found["first_bad"], found["candidates"]) == ("2.toml", "4.toml", ["3.toml"])
    assert all("disk_full" not in text for one in found["items"] for text in one["failures"])


@pytest.mark.full
def test_an_item_that_fills_the_disk_each_time_is_left_out(on_host: Checkout):
    fills = '[ "$ITEM" = 1 ] && { echo "OSError: [Errno 28] No space left on device"; exit 1; }\n'
    on_host.card("one", fills + 'v=100; [ "$ITEM" -ge 2 ] && v=80\necho "performance: $v samples/s"\n')
    for number in range(3):
        text = f'[recipe]\ntag = "one"\nbackend = "script"\n[recipe.set]\nenv.ITEM = "{number}"\n'
        (on_host.folder / f"{number}.toml").write_text(text)
    words = ("--between", "0.toml,1.toml,2.toml", "--fail-on", "regression>2%")
    assert bisect(on_host, *words).returncode == 3 and not summary(on_host)["conclusion"]
    done = on_host.madlite("bisect", "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    found = summary(on_host)
    assert (found["last_good"], found["first_bad"], found["candidates"]) == ("0.toml", "2.toml", ["1.toml"])
    assert found["items"][1]["standing"] == "untestable" and "disk_full" in found["items"][1]["failures"][0]


def test_an_interrupted_bisect_says_how_it_goes_on(on_host: Checkout):
    on_host.card("one", "echo begun $$; sleep 300\n")
    for number in (1, 2):
        text = f'[recipe]\ntag = "one"\nbackend = "script"\n[recipe.set]\nenv.ITEM = "{number}"\n'
        (on_host.folder / f"{number}.toml").write_text(text)
    started = start(on_host, "--between", "1.toml,2.toml")
    on_host.wait_for("begun")
    started.send_signal(signal.SIGINT)
    out, _ = started.communicate(timeout=240)
    (study,) = {one["study"]["id"] for one in on_host.records()}
    assert started.returncode == 130 and f"--resume={study} goes on" in out
    assert "STANDS" not in out, "no item has a run that tells of it"
    on_host.assert_nothing_left()


@pytest.mark.parametrize(
    ("script", "code", "said", "stands"),
    [
        (
            "echo performance: $((1000 + RANDOM % 3)) x",
            5,
            "nothing to find: 1.toml (the good end) and 2.toml (the bad end) do not differ: 1,00",
            "]  the bad end",
        ),
        ("exit 9", 3, "it is the good end, by which the others are judged: madlite show ", "the good end: exit_code: "),
        ("echo performance: 5 x; exit $((ITEM - 1))", 3, "--bad ITEM names another one", "the bad end: exit_code: "),
    ],
)
def test_ends_without_a_difference_or_a_number(on_host: Checkout, script: str, code: int, said: str, stands: str):
    on_host.card("one", script + "\n")
    for number in (1, 2):
        text = f'[recipe]\ntag = "one"\nbackend = "script"\n[recipe.set]\nenv.ITEM = "{number}"\n'
        (on_host.folder / f"{number}.toml").write_text(text)
    done = bisect(on_host, "--between", "1.toml,2.toml")
    assert done.returncode == code and said in done.stdout, done.stdout + done.stderr
    assert stands in done.stdout, "nothing is known of an end that does not differ"


@pytest.fixture
def built(engine: str, base_image: str) -> Iterator[list[str]]:
    """Images of the base with a number each: a good one, one that does not work, a bad one."""
    import docker

    names = {number: f"madlite-test/bisect{os.getpid()}:{number}" for number in NUMBERS}
    with docker.APIClient(engine, timeout=120) as client:
        for number, name in names.items():
            text = f"FROM {base_image}\nRUN echo {number} > /number\n"
            for line in client.build(fileobj=io.BytesIO(text.encode()), tag=name, rm=True, decode=True):
                assert "error" not in line, line
        yield [*names.values()]
        for name in names.values():
            client.remove_image(name, force=True)


@pytest.mark.engine
def test_images_are_bisected_over_a_kill(tmp_path: Path, engine: str, built: list[str]):
    checkout = Checkout(tmp_path / "mad", "docker", engine)
    checkout.card("one", "NUMBER_FILE=/number\n" + RUN)
    (checkout.folder / "images.txt").write_text("\n".join(["# in order", *built]))
    words = ("--between", "images.txt")
    started = start(checkout, *words)
    wait_until(lambda: len(checkout.records()) >= 3, "three runs")
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    before = {one["id"] for one in checkout.records()}
    done = bisect(checkout, *words, "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    found = summary(checkout)
    assert (found["last_good"], found["first_bad"], found["candidates"]) == (built[0], built[2], [built[1]])
    records = checkout.records()
    counted = [record for record in records if record["cause"] != "interrupted"]  # the one that the kill cut off
    assert before < {record["id"] for record in records} and len(counted) == found["runs"]
    assert len(records) - len(counted) <= 1
    assert {one["image"]["ref"] for one in counted} <= {
        *built
    } and f"first bad one is one of: {built[1]}" in done.stdout
    checkout.assert_nothing_left()


@contextmanager
def with_repository(engine: str, base_image: str, repo: Path, commit: str) -> Iterator[str]:
    """Yield an image whose /workspace/repo has the repository up to a commit."""
    import docker

    name, packed = f"madlite-test/bisect-repository{os.getpid()}", io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        text = f"FROM {base_image}\nCOPY repo /workspace/repo\nRUN cd /workspace/repo && git reset -q --hard {commit}"
        text += " && git reflog expire --expire=now --all && git gc -q --prune=now\n"
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text.encode()))
        archive.add(repo, "repo")
    packed.seek(0)
    with docker.APIClient(engine, timeout=120) as client:
        try:
            for line in client.build(fileobj=packed, custom_context=True, tag=name, rm=True, decode=True):
                assert "error" not in line, line
            yield name
        finally:
            client.remove_image(name, force=True)


@pytest.mark.full
@pytest.mark.engine
def test_commits_that_the_image_lacks_come_from_a_clone(tmp_path: Path, engine: str, base_image: str):
    commits = repository(tmp_path / "repo")
    with with_repository(engine, base_image, tmp_path / "repo", commits[1]) as name:
        checkout = Checkout(tmp_path / "mad", "docker", engine)
        checkout.card("one", "NUMBER_FILE=$MADLITE_REPOSITORY/number\n" + RUN)
        words = ("--image", name, "--repository", "/workspace/repo", "--good", commits[0], "--bad", commits[-1])
        lacking = bisect(checkout, *words)
        assert lacking.returncode == 4 and "--clone DIR" in lacking.stderr
        assert f"--bad {commits[-1]}: /workspace/repo of image {name} has no such commit" in lacking.stderr
        done = bisect(checkout, *words, "--clone", str(tmp_path / "repo"))
        assert done.returncode == 0, done.stdout + done.stderr
        found = summary(checkout)
        assert (found["last_good"], found["first_bad"]) == (commits[2][:12], commits[4][:12])
    checkout.assert_nothing_left()


@pytest.mark.engine
def test_commits_of_the_image_are_listed_in_a_container_of_it(tmp_path: Path, engine: str, base_image: str):
    commits = repository(tmp_path / "repo")
    with with_repository(engine, base_image, tmp_path / "repo", commits[-1]) as name:
        checkout = Checkout(tmp_path / "mad", "docker", engine)
        alike = (
            'echo "it is $(cat "$MADLITE_REPOSITORY/number")"; echo "performance: $((1000 + RANDOM % 3)) samples/s"\n'
        )
        checkout.card("one", alike)  # so that no run is made but those of the ends
        ends = ("--image", name, "--good", commits[2], "--bad", "HEAD~3")
        for wrong, said in {
            ("/nowhere",): "/nowhere of image",
            ("repo",): "in a container here, of an absolute path",
            ("/workspace/repo", "--dry-run"): "and not by --dry-run",
        }.items():
            refused = bisect(checkout, *ends, "--repository", *wrong)
            assert (refused.returncode, said in refused.stderr) == (4, True), refused.stderr
            assert "--clone DIR" in refused.stderr and not checkout.records()
            checkout.assert_nothing_left()
        listed = checkout.madlite("runs")
        assert (listed.stdout.strip(), listed.stderr) == ("no runs in madlite_runs", ""), "to list commits is no run"
        done = bisect(checkout, *ends, "--repository", "/workspace/repo")
        assert done.returncode == 5 and "nothing to find" in done.stdout, done.stdout + done.stderr
        found = summary(checkout)
        assert [one["name"] for one in found["items"]] == [commit[:12] for commit in commits[2:5]]
        assert found["items"][1]["note"] == "number 3"
        ran = {one["study"]["varied"]["commit"]: one["id"] for one in checkout.records()}
        for number in (2, 4):
            log = checkout.folder / "madlite_runs" / ran[commits[number][:12]] / "run.log"
            assert f"it is {number}\n" in log.read_text()
    checkout.assert_nothing_left()

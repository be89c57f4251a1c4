"""The contract of runtimes holds for one of a plugin, and says of each broken one what is wrong."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager, suppress

import psutil
import pytest
from msgspec.structs import replace

from madlite import Chunk, CommandRuntime, Completed, Exit, ImageUsed, JobOutcome, RuntimeProblem, Traits, reveal
from madlite.machine.processes import FOLDER_MARK
from madlite.platforms.host.runtime import HostRuntime
from tests.kit.bench import Bench
from tests.kit.runtimes import RUNTIME_CHECKS, check_runtime
from tests.lan.nodes import nodes
from tests.lan.plugin import Lan
from tests.testing.flawed_runtimes import Wrapped

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("only root can mount what its containers see")
    with nodes(tmp_path_factory.mktemp("lan"), 2) as addresses:
        yield addresses


@pytest.mark.parametrize("check", RUNTIME_CHECKS)
def test_one_of_two_nodes_behind_sockets_conforms(two, check):
    assert [str(flaw) for flaw in check_runtime(Lan(two), image="/", nodes=2, only=[check])] == []


def test_one_that_cannot_be_used_and_a_check_that_nobody_knows_are_told():
    (flaw,) = check_runtime(Lan(["127.0.0.1:1"]), image="/")
    assert str(flaw).startswith("members: runtime lan, available(): it cannot be used here: node 127.0.0.1:1")
    with pytest.raises(ValueError, match="there is no check 'speed' of runtimes: there are members, places"):
        check_runtime(HostRuntime(dict(os.environ)), only=["speed"])


def flawed(session=None, **members):
    """Return a runtime like the host's; `members` are its own, `session` what its sessions have."""

    class Flawed(CommandRuntime):
        name = "flawed"

        @contextmanager
        def open(self, plan):
            with super().open(plan) as real:
                wrong = {name: value(real) if callable(value) else value for name, value in (session or {}).items()}
                yield Wrapped(real, **wrong)

    for name, value in members.items():
        setattr(Flawed, name, value)
    return Flawed({"PATH": os.environ["PATH"]})


def running(change):
    """Return a session's `run` that passes each chunk through `change`."""
    return {"run": lambda real: lambda action, out: real.run(action, lambda chunk: change(chunk, out))}


def ended(change):
    """Return a session's `run` whose exit is changed."""
    return {"run": lambda real: lambda action, out: change(real.run(action, out))}


def held_back(real):
    def run(action, out):
        chunks = []
        done = real.run(action, chunks.append)
        for chunk in chunks:
            out(chunk)
        return done

    return run


def elsewhere(chunk, out):
    thread = threading.Thread(target=out, args=(chunk,))
    thread.start()
    thread.join()


def only_once(real):
    """A session that is over after its first failure."""
    failed = []

    def run(action, out):
        done = real.run(action, out) if not failed else Exit(code=1, duration_s=0.0)
        failed.extend([1] if done.code else [])
        return done

    return run


def goes_on(self, plan):
    """A session that nobody ends."""
    return CommandRuntime.open(self, replace(plan, keep_alive=True))


def leaks(self, plan):
    return {"token": reveal(plan.env)["HF_TOKEN"]}


def litters(self, plan):
    (plan.folder / "asked").touch()
    return {}


def refuse(*given):
    raise RuntimeProblem("no")


def brings_all(real):
    def collect(patterns, into):
        into.mkdir(exist_ok=True)
        for path in real._workspace.rglob("*"):
            if path.is_file():
                (into / path.name).write_bytes(path.read_bytes())

    return collect


def forgives(self, plan, argv, cwd):
    return ["sh", "-c", '"$0" "$@" || true', *argv]


def sees_all(self, plan, action):
    """A container that has all of the host's folder of runs."""
    return action.argv, plan.workspace / action.cwd.replace("{folder}", str(plan.folder))


def kills(real):
    return lambda grace_s: os.killpg(real._actions[-1].pid, signal.SIGKILL)


def alone(real):
    """A probe that is in a process namespace of its own."""
    inside = ("unshare", "--mount", "--pid", "--fork", "--mount-proc")
    return lambda argv, node, limit_s: real.probe((*inside, *argv), node, limit_s)


def not_kept(self, plan):
    return CommandRuntime.open(self, replace(plan, keep_alive=False))


def without_variables(real):
    real._env.clear()
    return real.run


def deaf(real):
    return lambda grace_s: None


def reopens(real):
    """A session that takes actions after a stop."""

    def run(action, out):
        real._gate.closed.clear()
        return real.run(action, out)

    return run


def late(real):
    def probe(argv, node, limit_s):
        return real.probe(argv, node, 60.0) if "600" not in argv[-1] else Completed(code=0, stdout=b"begun")

    return probe


def unbounded(real):
    def probe(argv, node, limit_s):
        done = real.probe(argv, node, limit_s)
        return replace(done, stdout=done.stdout * 2)

    return probe


SHARED = {}


def of_the_class(real):
    """A session whose plan is the runtime's: the last one that was opened."""
    SHARED["env"] = real._env

    def run(action, out):
        real._env = SHARED["env"]
        return real.run(action, out)

    return run


FOUND_BY_THE_LIMIT = ("a line did not come while the action ran", "run has not returned after")


@pytest.fixture
def workspace(tmp_path):
    """A folder for the kit; what a broken runtime leaves running of its runs is ended."""
    yield tmp_path
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(FOLDER_MARK, "").startswith(f"{tmp_path}/"):
                process.kill()


@pytest.mark.parametrize(
    ("check", "told", "runtime"),
    [
        ("members", "it has no method cancel", flawed(cancel=None)),
        ("members", "cancel does not take handle", flawed(cancel=lambda self: None)),
        ("members", "name: it is 'My Runtime'", flawed(name="My Runtime")),
        ("members", "traits: they are None", flawed(traits=None)),
        ("members", "it answered 'no'", flawed(available=lambda self: "no")),
        ("members", "handle of its session: it is ''", flawed({"handle": ""})),
        ("members", "nodes of its session: they are ('a', 'b')", flawed({"nodes": ("a", "b")})),
        ("members", "shell of its session: it is None", flawed({"shell": None})),
        ("places", "it takes plans for anywhere", flawed(supports=lambda self, place: True)),
        ("places", "it does not take the kit's own plans", flawed(supports=lambda self, place: False)),
        ("places", "prepare: it answered None", flawed(prepare=lambda self, plan, say: None)),
        ("places", "prepare: it passed 7 to say", flawed(prepare=lambda self, plan, say: say(7) or ImageUsed())),
        ("request", "it shows a secret of plan.env", flawed(request=leaks)),
        ("request", "it is no JSON", flawed(request=lambda self, plan: {"plan": plan})),
        ("request", "it changed the workspace", flawed(request=litters)),
        ("output", "node 0: 0 bytes came of stream 2", flawed(running(lambda c, out: c.stream == 1 and out(c)))),
        ("output", "other than the 10 that", flawed(running(lambda c, out: out(Chunk(data=c.data))))),
        ("output", "output came of node 3", flawed(running(lambda c, out: out(replace(c, node=3))))),
        ("output", "passed on by another thread", flawed(running(elsewhere))),
        ("output", "a line did not come while the action ran", flawed({"run": held_back, "stop": deaf})),
        ("exits", "run of 'exit 3': Exit(code=0", flawed(ended(lambda done: replace(done, code=0)))),
        ("exits", "it went well, where nothing can be started", flawed(command=forgives)),
        ("exits", "nothing runs after an action that failed", flawed({"run": only_once})),
        ("environment", "HF_TOKEN|KIT|OTHER are", flawed({"run": without_variables})),
        ("files", "is not there for an action whose cwd", flawed(_start=lambda self, plan, a: (a.argv, plan.folder))),
        ("files", "came nothing for the pattern", flawed({"collect": lambda real: lambda patterns, into: None})),
        ("files", "it brought a file from outside", flawed({"collect": brings_all})),
        ("files", "a container reaches what madlite keeps", flawed(traits=Traits(), _start=sees_all)),
        ("limits", "timed_out=False", flawed(ended(lambda done: replace(done, timed_out=False)))),
        ("stop", "did not come to it on node 0", flawed({"stop": kills})),
        ("stop", "run after a stop: the command ran", flawed({"run": reopens})),
        ("stop", "what was killed went well", flawed(ended(lambda done: replace(done, code=0)))),
        ("stop", "run has not returned after", flawed({"stop": deaf})),
        ("leaving", "a process of the run is still running", flawed(open=goes_on)),
        ("handles", "cancel: a process of the run is still running", flawed(cancel=lambda self, handle: None)),
        ("handles", "it refused: no", flawed(cancel=refuse)),
        (
            "handles",
            "of a handle that it never returned it reports",
            flawed(outcome=lambda self, handle: JobOutcome(state="x")),
        ),
        ("handles", "plan.keep_alive: what ran was ended", flawed(open=not_kept)),
        ("probe", "past its limit it answered", flawed({"probe": late})),
        ("probe", "bytes of output were kept", flawed({"probe": unbounded})),
        ("probe", "it does not see the action's processes", flawed({"probe": alone})),
        ("two_at_once", "the action of session 1 printed", flawed({"run": of_the_class})),
        ("two_at_once", "two sessions have the same handle", flawed({"handle": "mine"})),
    ],
)
def test_a_flaw_is_told(check, told, runtime, workspace):
    # where the limit is what finds the flaw, a busy machine may need a longer one for all else
    for limit_s in (6.0, 30.0) if told in FOUND_BY_THE_LIMIT else (60.0,):
        flaws = [str(flaw) for flaw in check_runtime(runtime, only=[check], limit_s=limit_s, workspace=workspace)]
        if any(told in flaw for flaw in flaws):
            break
    assert any(told in flaw for flaw in flaws), flaws
    assert all(flaw.endswith(")") for flaw in flaws), "each says what to do"


def test_a_runtime_that_swallows_what_is_raised_in_its_session_does_not_swallow_what_a_check_raises(tmp_path):
    @contextmanager
    def swallowing(self, plan):
        with CommandRuntime.open(self, plan) as session, suppress(Exception):
            yield session

    bench = Bench(flawed(open=swallowing))
    with pytest.raises(ValueError, match="of a check"), bench.session(bench.plan(tmp_path)):
        raise ValueError("of a check")

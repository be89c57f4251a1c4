"""Commits of a git repository as what is bisected: their order, and a run at one of them.

In a container the repository is the image's own, checked out at the commit before anything else of the run's; what it
lacks it fetches from a clone of this machine, where there is one: its commits are listed from that, else by git in a
container of the image.  On the host no folder of the user's is changed: the run has a clone of
its own, which shares the objects.  Either way MADLITE_REPOSITORY is the folder with the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec.structs import replace

from madlite.backends.loader import guard_plugin
from madlite.errors import RuntimeProblem, UsageProblem
from madlite.model import Action, Chunk, EnvValue, Mount, RunPlan, Say, Session, Value
from madlite.plan.inputs import RUNS
from madlite.plan.submission import PlannedRun
from madlite.process import Finished, capture
from madlite.store.events import now
from madlite.store.folder import HANDLE, RunEntry, RunFolder, new_run_id, open_runs

VARIABLE = "MADLITE_REPOSITORY"
_CLONE_INSIDE = "/madlite_clone"
_LIMIT_S = 60.0
_FORMAT = "--format=%H %s"
_CHECKOUT_LIMIT_S = 1800.0  # of a commit that fetches from a slow disk
# a container's root may use git in folders of the caller's
_SAFE: dict[str, EnvValue] = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_TERMINAL_PROMPT": "0",
}
# $1 the repository, $2 the commit, $3 a clone that may have it
_INSIDE = (
    'cd -- "$1" && { git cat-file -e "$2^{commit}" 2>/dev/null || { [ -n "$3" ] && '
    'git fetch -q --no-tags "$3" "+refs/*:refs/madlite/*"; }; } && git checkout -q --detach "$2"'
    " && git submodule update -q --recursive"
)
# $1 the user's repository, $2 the commit, $3 the run's own clone of it
_OUTSIDE = 'git clone -q --shared --no-checkout -- "$1" "$3" && git -C "$3" checkout -q --detach "$2"'


Git = Callable[..., Finished]
"""Runs git with these words in a repository."""
_CLONE = "--clone DIR names a clone of the repository on this machine"


class Commit(Value, frozen=True):
    """A commit by its full name, and the first line of its message."""

    name: str
    subject: str = ""


def git_here(folder: Path, environ: Mapping[str, str]) -> Git:
    """Return git of this machine in a folder of it."""
    env = {**environ, **{name: str(text) for name, text in _SAFE.items()}, "LC_ALL": "C"}
    return lambda *words: capture(("git", "-C", str(folder), *words), limit_s=_LIMIT_S, env=env)


@contextmanager
def git_inside(run: PlannedRun, repository: str, say: Say) -> Iterator[Git]:
    """Yield git in a container of a run's image, which is made ready for it; the container has no GPU.

    Raises:
        UsageProblem: there is no image, container or git.
    """
    plan = run.plan
    run_id = new_run_id(plan.card.name)
    bare = replace(
        plan,
        id=run_id,
        folder=plan.workspace / RUNS / run_id,
        devices=(),
        mounts=(),
        keep_alive=False,
        place=replace(plan.place, gpus_per_node=0, gpu_ids=()),
        machine=replace(plan.machine, vendor="CPU", gpus=()),
    )
    try:
        with guard_plugin(run.runtime), closing(RunFolder.create(bare, ())) as folder:
            try:
                run.runtime.prepare(bare, say)
                with run.runtime.open(bare) as session:
                    folder.write(HANDLE, session.handle.encode())  # by which clean finds what a kill leaves
                    yield lambda *words: _run_inside(session, ("git", "-C", repository, *words))
            finally:
                folder.note(RunEntry(at=now(), cleaned=""))
                with open_runs(plan.workspace) as runs:  # it was no run, and none is listed
                    runs.remove_tree(run_id)
    except RuntimeProblem as problem:
        image = plan.image.ref if plan.image is not None else ""
        what = f"the commits of {repository} in image {image} cannot be listed: {problem.message}"
        raise UsageProblem(what, problem.hint or _CLONE) from None


def _run_inside(session: Session, argv: tuple[str, ...]) -> Finished:
    output = {1: bytearray(), 2: bytearray()}

    def collect(chunk: Chunk) -> None:
        output[chunk.stream].extend(chunk.data)

    action = Action(kind="prepare", argv=argv, cwd="/", env={**_SAFE, "LC_ALL": "C"}, timeout_s=_LIMIT_S)
    ended = session.run(action, collect)
    out, err = (bytes(data).decode(errors="replace") for data in output.values())
    return Finished(code=ended.code, stdout=out, stderr=err, timed_out=ended.timed_out)


def list_commits(git: Git, where: str, good: str, bad: str) -> tuple[Commit, ...]:
    """Return the commits of a repository from good to bad, both with them, along the first parents of the newer one.

    Messages call it `where`.

    Raises:
        UsageProblem: it is no repository, lacks one of them, or neither descends from the other.
    """
    top = git("rev-parse", "--git-dir")
    if not top.ok:
        why = _last_line(top) or "git said nothing"
        raise UsageProblem(f"{where} is no git repository: {why}", _CLONE)
    first, last = (_resolved(git, where, option, name) for option, name in (("--good", good), ("--bad", bad)))
    if first == last:
        raise UsageProblem(f"--good {good} and --bad {bad} are the same commit {first[:12]}", "name two")
    if _is_ancestor(git, first, last):
        return _between(git, where, first, last)
    if _is_ancestor(git, last, first):
        return tuple(reversed(_between(git, where, last, first)))
    what = f"neither of --good {good} and --bad {bad} descends from the other: there is no order between them"
    base = git("merge-base", first, last).stdout.strip()
    raise UsageProblem(what, f"their common ancestor is {base[:12]}: name it as --good" if base else "name others")


def _last_line(done: Finished) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1].strip() if lines else "it took too long" if done.timed_out else ""


def _resolved(git: Git, where: str, option: str, name: str) -> str:
    done = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if not done.ok:
        hint = f"--good and --bad name commits that git log shows there, {_CLONE}"
        raise UsageProblem(f"{option} {name}: {where} has no such commit", hint)
    return done.stdout.strip()


def _is_ancestor(git: Git, part: str, other: str) -> bool:
    return git("merge-base", "--is-ancestor", part, other).ok


def _between(git: Git, where: str, older: str, newer: str) -> tuple[Commit, ...]:
    order = ("--first-parent", "--topo-order", "--reverse", _FORMAT)
    after = git("log", "-z", *order, f"{older}..{newer}")
    itself = git("log", "-z", _FORMAT, "--max-count=1", older)
    for done in (after, itself):
        if not done.ok:
            raise UsageProblem(f"the commits of {where} cannot be listed: {_last_line(done)}")
    commits = (text.partition(" ") for done in (itself, after) for text in done.stdout.split("\0") if text)
    return tuple(Commit(name=name, subject=" ".join(subject.split())) for name, _, subject in commits)


def at_commit(run: PlannedRun, repository: str, commit: str, clone: Path | None) -> PlannedRun:
    """Return a run with the repository at a commit; `clone` is one of this machine that has the commit."""
    plan = run.plan
    if plan.blocked is not None:
        return run
    make = _inside if plan.traits.containerised else _outside
    changed, folder = make(plan, repository, commit, clone)
    env, origins = {**plan.env, VARIABLE: folder}, {**plan.origins, f"env.{VARIABLE}": "bisect"}
    return replace(run, plan=replace(changed, env=env, origins=origins))


def _inside(plan: RunPlan, repository: str, commit: str, clone: Path | None) -> tuple[RunPlan, str]:
    """Return the plan of a container, and its repository: the checkout comes right before what needs that."""
    cwd = next((action.cwd for action in plan.actions if action.kind == "run"), ".")
    argv = ("bash", "-c", _INSIDE, "checkout", repository, commit, _CLONE_INSIDE if clone is not None else "")
    action = Action(kind="prepare", argv=argv, cwd=cwd, env=_SAFE, timeout_s=_CHECKOUT_LIMIT_S)
    mount = (Mount(source=str(clone), target=_CLONE_INSIDE, read_only=True),) if clone is not None else ()
    kinds = [other.kind for other in plan.actions]
    if "clone" in kinds:
        place = len(kinds) - kinds[::-1].index("clone")
    else:
        place = next((n for n, kind in enumerate(kinds) if kind != "prepare"), len(kinds))
    actions = (*plan.actions[:place], action, *plan.actions[place:])
    return replace(plan, actions=actions, mounts=(*plan.mounts, *mount)), repository


def _outside(plan: RunPlan, repository: str, commit: str, clone: Path | None) -> tuple[RunPlan, str]:
    """Return the plan of a run on the host, and its own clone, which is there as long as it runs."""
    own = f"{plan.folder_inside}/repository"
    argv = ("bash", "-c", _OUTSIDE, "checkout", str(clone or repository), commit, own)
    before = Action(kind="prepare", argv=argv, env=_SAFE, timeout_s=_CHECKOUT_LIMIT_S)
    after = Action(kind="clean", argv=("rm", "-rf", "--", own))
    return replace(plan, actions=(before, *plan.actions, after)), own

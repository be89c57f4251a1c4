"""A MAD card's own script, run as it is.

The steps, their order and their limits are MAD's: a fresh model folder (`run_directory`, or the repository's name),
the clone of `url`, pre-scripts, a copy of the folder that holds the script, the data, then `bash <script> <args>` in
the model folder, and post-scripts. Other than there, a folder of the repository's name that madlite did not make is
never removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from madlite import (
    Action,
    Asset,
    Backend,
    Card,
    Finding,
    Machine,
    Reader,
    Request,
    ResultRule,
    RunPlan,
    RunSpec,
    UsageProblem,
    hookimpl,
)
from madlite_plugins.no_steps import NoSteps

CLONE_LIMIT_S = 240.0
_MARK = ".git/madlite"  # in a clone that madlite made; git status does not look there
_OURS = f'[ "$1" = run_directory ] || [ -e "$1/{_MARK}" ]'
_CLEAR = (
    f'if {{ [ -e "$1" ] || [ -L "$1" ]; }} && ! {{ {_OURS}; }}; then '
    'echo "madlite: the repository is to be cloned into $1, but the one that is here was not made by madlite: '
    'move it away, or remove it: rm -rf $1" >&2; exit 1; fi; rm -rf -- "$1" ".$1.cloning"'
)
# cloned beside and marked before it gets its name: a clone that was cut off is not taken for a user's folder
_CLONE = (
    f'git -c safe.directory="*" clone -- "$1" ".$2.cloning" && : >".$2.cloning/{_MARK}" && mv -- ".$2.cloning" "$2" '
    '&& cd -- "$2" && git -c safe.directory="*" rev-parse HEAD '
    '&& git -c safe.directory="*" submodule update --init --recursive'
)
_FRESH = 'rm -rf -- "$1" && mkdir -p -- "$1"'
# what MAD's tools and scripts leave in the model's folder for the workspace (madengine 2)
_OUTPUTS = ("*_profiler_output.csv", "*_output.csv", "*_trace.csv", "library_trace.csv")
_CLEAN = f'if {_OURS}; then rm -rf -- "$1"; fi'
_COPY = 'cp -aL -- "$2" "$1"/ && chmod -R a+rw -- "$1"'
# a container's root may use git in folders of the caller's, as MAD's `safe.directory` step allows; for this run alone
_GIT = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
_INTERPRETERS = {".py": "python3", ".sh": "bash", ".slurm": "bash"}


class Script:
    """Runs cards whose script lies in the checkout."""

    name = "script"

    def claim(self, card: Card, checkout: Path) -> int:
        """Own a card whose script is here; a card of this very checkout also when its script is missing."""
        if not card.scripts:
            return 0
        if (checkout / card.scripts).exists():
            return 50
        return 20 if card.root == checkout else 0

    def expand(self, request: Request, machine: Machine) -> Sequence[RunSpec]:
        """Return the one run of the card.

        Raises:
            UsageProblem: the card names no script.
        """
        card = request.card
        if not card.scripts:
            raise UsageProblem(
                f"card '{card.name}' names no script to run", "--backend NAME chooses another backend", keys=()
            )
        launcher = str(_table(card, "distributed").get("launcher", ""))
        # a script of several nodes may leave its perf.csv in place of a line
        own = f"perf_{re.sub('[^A-Za-z0-9._-]', '_', card.name)}.csv" if _starts_steps(launcher) else ""
        rule = ResultRule(kind="performance_line", file=own)
        if card.multiple_results:
            rule = ResultRule(kind="multiple_results", file=card.multiple_results)
        variables = _table(card, "env_vars") | _roles(card) if _starts_steps(launcher) else {}
        return [
            RunSpec(
                actions=tuple(_actions(card)),
                image=card.image,
                env=_GIT | {name: str(value) for name, value in variables.items()},
                launcher=launcher,
                result_rule=rule,
                readers=(self.name,),
                origin="card",
                problem=_missing(card),
                outputs=_OUTPUTS,
            )
        ]

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Find what keeps a script from working that starts the steps on the nodes of its job itself."""
        if not _starts_steps(plan.launcher):
            return
        if plan.traits.containerised:
            yield Finding(
                fatal=True,
                keys=("runtime",),
                message="the script starts steps of Slurm and containers itself, so it has to run on a node itself",
                hint='container = "none" in the cluster file; DOCKER_IMAGE_NAME in env_vars names its image',
            )
        card = plan.card
        nodes = _table(card, "slurm").get("nodes") or _table(card, "distributed").get("nnodes") or plan.place.nodes
        if str(nodes) != str(plan.place.nodes):
            yield Finding(
                fatal=False,  # who asks for other nodes knows what the script makes of them, as in madengine 2
                keys=("nnodes",),
                message=f"the card is for {nodes} nodes, and the run has {plan.place.nodes}",
                hint=f"madlite run --cluster NAME --nodes {nodes}, or salloc -N{nodes}",
            )

    def assets(self, plan: RunPlan) -> Iterable[Asset]:
        """Need nothing beyond what the script fetches itself."""
        return ()

    def detect(self, head: Sequence[str]) -> float:
        """Recognise nothing: a script's log can be anything."""
        return 0.0

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a reader that finds no steps."""
        return NoSteps()


def _table(card: Card, key: str) -> dict[str, Any]:
    found = card.extra.get(key)
    return found if isinstance(found, dict) else {}


def _roles(card: Card) -> dict[str, Any]:
    """Return how many nodes prefill and how many decode, in the variables that scripts of split roles read."""
    roles = _table(card, "distributed").get("sglang_disagg")
    if not isinstance(roles, dict):
        return {}
    return {name: roles[key] for key, name in (("prefill_nodes", "xP"), ("decode_nodes", "yD")) if roles.get(key)}


def _starts_steps(launcher: str) -> bool:
    """Return whether a card's script starts the steps on its nodes itself, as madengine 2's `slurm_multi`."""
    return launcher.replace("-", "_") == "slurm_multi"


def _actions(card: Card) -> Iterable[Action]:
    folder, script = _folder_and_script(card.scripts)
    source = f"{folder}/." if folder != "." else script
    yield _prepare(_CLEAR if card.url else _FRESH, source)
    if card.url:
        yield Action(
            kind="clone", argv=("bash", "-c", _CLONE, "clone", card.url, "{model_dir}"), timeout_s=CLONE_LIMIT_S
        )
    yield Action(kind="pre", argv=())
    yield _prepare(_COPY, source)
    yield Action(kind="data", argv=())
    # the args are the card author's shell text: expanded by the shell of the workload, never by the caller's
    command = f"{{encapsulate}}{_interpreter(script)} {_word(script)} {{args}}"
    yield Action(kind="run", argv=("bash", "-c", command), cwd="{model_dir}")
    yield Action(kind="post", argv=())
    # without a repository the folder has a name of madlite's own
    clean = ("bash", "-c", _CLEAN, "clean", "{model_dir}") if card.url else ("rm", "-rf", "--", "{model_dir}")
    yield Action(kind="clean", argv=clean)


def _prepare(command: str, source: str) -> Action:
    """One shell for several steps: each costs a container a tenth of a second."""
    return Action(kind="prepare", argv=("bash", "-c", command, "prepare", "{model_dir}", source))


def _missing(card: Card) -> str:
    file = card.root / card.scripts
    if file.exists():
        return ""
    if card.source.startswith("bundled"):  # of MAD, whose scripts do not come with madlite
        return f"its script {card.scripts} is not in this folder: run it inside a checkout of ROCm/MAD"
    is_mad = card.scripts.startswith("scripts/") and not (card.root / "scripts").is_dir()
    hint = "; a card of ROCm/MAD runs in a checkout of it" if is_mad else ""
    return f"its script {card.scripts} is not in this folder: {file} does not exist{hint}"


def _folder_and_script(scripts: str) -> tuple[str, str]:
    """Return the folder to copy and the script's name in it; a folder stands for the run.sh inside."""
    path = PurePosixPath(scripts)
    if path.suffix in _INTERPRETERS:
        return str(path.parent), path.name
    return str(path), "run.sh"


def _interpreter(script: str) -> str:
    return _INTERPRETERS[PurePosixPath(script).suffix]


def _word(text: str) -> str:
    return text if re.fullmatch(r"[\w./-]+", text) else "'" + text.replace("'", "'\\''") + "'"


@hookimpl
def madlite_backends() -> list[Backend]:
    """Bring the script backend."""
    return [Script()]

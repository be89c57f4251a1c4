"""What the caller asked for beyond tags: options of the command line, and the surroundings they are read in."""

from __future__ import annotations

from pathlib import Path

from madlite.model import Value


class Options(Value, frozen=True):
    """Options of one `run`, `explain` or dry run. `timeout_s`: None follows the card, 0 is no limit."""

    workspace: Path
    output: Path
    output_target: Path | None = None  # what `output` led to, links followed, when the command began
    runtime: str = ""  # as asked for; "" leaves the choice to the card and the machine
    image: str = ""
    backend: str = ""
    timeout_s: int | None = None
    named: tuple[tuple[str, str, str], ...] = ()  # options of their own for a key: option, key, value
    sets: tuple[tuple[str, str], ...] = ()  # --set key=value, in order
    live_output: bool = False
    keep_alive: bool = False
    keep_model_dir: bool = False
    skip_model_run: bool = False
    clean_docker_cache: bool = False
    strict_header: bool = False
    rows: bool = True  # False leaves results to `madlite collect`: no results file, no side files, no record
    result_file: bool = False  # whether a run's folder gets a result file also where rows are written
    columns: tuple[str, ...] = ()  # of madlite's own, that rows are to have: record.rows.OWN_COLUMNS
    ignore_deprecated: bool = False
    disable_skip_gpu_arch: bool = False
    environ: dict[str, str] = {}
    python: str = "python3"  # the interpreter that runs madlite, for workloads of the host runtime
    user: tuple[int, int] = (0, 0)  # uid and gid of the caller
    data_file: Path = Path("data.json")
    tools_file: Path = Path("scripts/common/tools.json")
    snapshot: bool = False  # of the environment, before the model
    mirror: str = ""  # folder that keeps what data providers bring
    registry: str = ""  # where built images are pushed to
    contract: int = 0  # the version of madengine to be like where scripts look; 0 for none
    lint: bool = True  # whether a fatal finding keeps a run from starting
    command: tuple[str, ...] = ()  # the words of the command line, secrets masked, without the program's name

    @property
    def asked(self) -> dict[str, str]:
        """What the command line sets of a plan, by key; --set comes over the options of their own."""
        return {**{key: value for _, key, value in self.named}, **dict(self.sets)}

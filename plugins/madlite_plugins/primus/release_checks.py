"""Whether a release of Primus has a config file, as far as the recipes' own rows tell.

They name the files of the tags that are documented, not all that a release has: what does not follow from them is a
warning.  What does follow: before v25.10 all files lie in `configs/`, from then on each in the folder of a GPU, and no
release has a model's file both with a precision in its name and without.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from madlite import Finding, RecipeBook, RunPlan, Variant, nearest_words, read_book
from madlite_plugins.primus.rules import FRAMEWORKS
from madlite_plugins.primus.tree import PRECISIONS, TREE, precision_of

BOOK = Path(__file__).with_name("recipes")
_FOLDERS_SINCE = "v25.10"
_NEAR = 3  # that are shown


class Config:
    """The path of a config file, as `examples/<launcher>/configs/[<GPU>/]…<name>.yaml`, and what it says."""

    def __init__(self, path: str) -> None:
        self.path = PurePosixPath(path)
        parts = self.path.parts
        placed = len(parts) > 3 and parts[0] == "examples" and parts[2] == "configs"
        self.launcher = parts[1] if placed else ""
        self.gpu = parts[3] if placed and len(parts) > 4 else ""

    @property
    def bare(self) -> str:
        """Its path without the precision in its name, which says whether two are of one model."""
        words = (word for word in self.path.stem.split("-") if word.upper() not in PRECISIONS)
        return f"{self.path.parent}/{'-'.join(words)}"

    def on(self, gpu: str) -> PurePosixPath:
        """Return the path of the file of the same name in a GPU's folder, or in none."""
        folder = PurePosixPath("examples", self.launcher, "configs")
        return folder / gpu / self.path.name if gpu else folder / self.path.name


def release_findings(plan: RunPlan, variant: Variant, config: Config) -> Iterator[Finding]:
    """Yield that a release does not have the file, or that the recipes do not know of it."""
    book = read_book(BOOK)
    here = _configs(book, variant.release)
    if config.gpu == "MI350X":
        yield Finding(
            message="Primus has no configs for MI350X",
            hint=f"--set config={config.on('MI355X')}",
            fatal=True,
            keys=("config",),
        )
    elif here and str(config.path) not in here:
        absent = _absent(plan, variant, config, here)
        if absent:
            yield absent
        elif plan.settings["recipe"] != TREE:
            near = _near(config.path, here)
            message = f"{config.path} is not among the files that the recipes have for {variant.release}"
            yield Finding(message=message, hint=f"near: {', '.join(near)}" if near else "")


def _configs(book: RecipeBook, release: str) -> list[str]:
    return sorted({str(run.values["config"]) for run in book.runs if release in run.releases})


def _near(path: PurePosixPath, here: list[str]) -> list[str]:
    """Return the files of nearly the same name: those in the same folder, or else in any."""
    files = [PurePosixPath(file) for file in here]
    for among in ([file for file in files if file.parent == path.parent], files):
        close = nearest_words(path.stem, (file.stem for file in among), most=_NEAR)
        if close:
            return [str(file) for stem in close for file in among if file.stem == stem][:_NEAR]
    return []


def _absent(plan: RunPlan, variant: Variant, config: Config, here: list[str]) -> Finding | None:
    """Return why the file cannot be there; nothing where it may be."""
    release, known = variant.release, [Config(path) for path in here]
    if config.launcher not in FRAMEWORKS:
        return None
    folders = {other.gpu for other in known if other.gpu}
    if not config.gpu and folders:
        return _no_file(f"{release} has its configs in a folder for each GPU", config.on(_folder(plan, folders)))
    if config.gpu and not folders:
        return _no_file(f"{release} has no folder {config.path.parent}: it came with {_FOLDERS_SINCE}", config.on(""))
    if config.gpu not in folders and folders:
        since = _since(config.gpu)
        why = f": it came with {since}" if since else f": there are {', '.join(sorted(folders))}"
        return _no_file(f"{release} has no folder {config.path.parent}{why}", config.on(_folder(plan, folders)))
    twins = [other for other in known if other.bare == config.bare]
    if twins and bool(precision_of(config.path.name)) != bool(precision_of(twins[0].path.name)):
        best = next((other for other in twins if precision_of(other.path.name) == variant.precision), twins[0])
        return _no_file(f"{release} has no {config.path.name}", best.path)
    return None


def _no_file(message: str, instead: PurePosixPath) -> Finding:
    return Finding(message=message, hint=f"--set config={instead}", fatal=True, keys=("config",))


def _folder(plan: RunPlan, folders: set[str]) -> str:
    """Return the folder that a release has for this machine's GPU, or for the one whose files it takes."""
    device = plan.machine.device
    return next((gpu for gpu in (device, read_book(BOOK).stand_in.get(device, "")) if gpu in folders), "MI300X")


def _since(gpu: str) -> str:
    """Return the first release whose rows name the folder of a GPU."""
    book = read_book(BOOK)
    return next((name for name in book.releases if gpu in {Config(path).gpu for path in _configs(book, name)}), "")

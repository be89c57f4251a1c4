"""One engine for all studies: a strategy says by the runs so far which come next, until it has its answer.

The engine owns what studies have in common: the folder with its lock and caches, what a study that was cut off left,
which runs count, signals, the outcome of all runs, and the files at the end.  The runs are ordinary ones, tied by the
id of the study.  The event log has what was asked for, and the records have the rest: of one that is resumed the first
samples are the runs that have ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from madlite.batch.attempts import TRANSIENT
from madlite.batch.resume import Resumption
from madlite.batch.runner import Batch, BatchRuns, BatchStart
from madlite.errors import ExitCode, UsageProblem
from madlite.model import Cause, Json, Result, Scalar, Status, Study, Value
from madlite.plan.caches import cache_folders
from madlite.plan.context import Options
from madlite.plan.inputs import RUNS
from madlite.plan.plan_file import plan_digest
from madlite.plan.submission import PlannedRun
from madlite.reports.index import RunFilter, open_index
from madlite.reports.runs import StoredRun
from madlite.run.executor import secrets_for
from madlite.run.screen import RunOutcome, pair
from madlite.run.stop import Signals
from madlite.secrets import Redactor, masked_json
from madlite.store.batches import SUMMARY, BatchLog, StudyFolder, caches_path, studies_of, study_path
from madlite.store.events import StudyStarted
from madlite.store.folder import exists
from madlite.study.summary import Sample, sample_of_record, samples_of
from madlite.text import counted

# of the causes of a machine those that a configuration can have by itself
_MAY_BE_ITS_OWN = frozenset(cause.value for cause in (Cause.DISK, Cause.INODES, Cause.ENGINE))


PlanWith = Callable[[Mapping[str, Scalar]], Sequence[PlannedRun]]
"""Plans the runs of a command with more values of `--set`, always as many and in the same order."""


class Ask(Value, frozen=True):
    """The runs that come next, and what is printed before; `later` are those that the command makes after them."""

    runs: Sequence[PlannedRun]
    later: Sequence[PlannedRun] = ()
    text: str = ""


class Answer(Value, frozen=True):
    """What a study came to, for programs (`content`) and for people, with further files by their names.

    `exit_code` is a search's; None where that of the runs is the study's.
    """

    content: Value
    lines: tuple[str, ...]
    files: dict[str, str] = {}
    exit_code: ExitCode | None = None

    @property
    def stored(self) -> dict[str, Json]:
        """What study.json has: the content, and the lines that `runs --of` and `show` print of it."""
        return {**msgspec.to_builtins(self.content), "lines": list(self.lines)}


class Strategy(ABC):
    """Decides which runs a study makes, and what they tell.

    Both by the samples so far, in the order in which they were asked for, those of an earlier command first: a study
    that was cut off goes on where it was.  `planned` are the runs whose results it is about, in a search those that
    were asked for; warm-ups come before them.  `firsts` have all secrets of its runs.  A run that a machine cause ended
    tells nothing of what it tried: it ends a search, until that is resumed.
    """

    kind = ""
    machine_causes: frozenset[Cause] = frozenset()

    def __init__(
        self,
        study_id: str,
        firsts: Sequence[PlannedRun],
        planned: Sequence[PlannedRun] = (),
        warm_ups: Sequence[PlannedRun] = (),
    ) -> None:
        self.id, self.firsts, self.planned, self.warm_ups = study_id, firsts, [*planned], warm_ups

    @abstractmethod
    def ask(self, samples: Sequence[Sample]) -> Ask | None:
        """Return what to run next; None where the study has its answer."""

    @abstractmethod
    def summary(self, samples: Sequence[Sample]) -> Answer:
        """Return what the study came to, after the last `ask`; the last sample may be one that tells nothing."""

    def is_of_machine(self, result: Result) -> bool:
        """Return whether a run failed for what has nothing to do with what it tried: a full disk, say."""
        return result.status is Status.FAILURE and result.code in {cause.value for cause in self.machine_causes}


class StudyRuns(BatchRuns):
    """The runs of a study."""

    def __init__(
        self, strategy: Strategy, journal: BatchLog, request: Mapping[str, Json] | None = None, *, resumed: bool = False
    ) -> None:
        super().__init__(strategy.planned, journal, strategy.id)
        self._strategy = strategy
        self._request, self._is_resumed = dict(request or {}), resumed
        self._samples: list[Sample] = []
        self._results: list[Result] = []  # of the runs of this command, without the warm-ups
        self._last = RunOutcome(results=(), not_started=(), exit_code=ExitCode.OK)
        self._pending: tuple[str, ...] = ()
        self._asked: set[str] = set()
        self._ended_by_machine: list[Mapping[str, object]] = []  # what those runs varied
        self._stopped_by = ""  # why the machine ended the last run

    @property
    def every(self) -> Sequence[PlannedRun]:
        """The planned runs with the warm-ups."""
        return (*self._strategy.warm_ups, *self.planned)

    def run(self, start: BatchStart) -> RunOutcome:
        """Make the runs that the strategy asks for, until it has its answer, a signal comes or the machine fails.

        Raises:
            UsageProblem: the folder of the study cannot be made, or its records are of another one; nothing has run.
        """
        workspace, resumed = start.options.workspace, self._is_resumed or start.resumed is not None
        with making_folder(self.study_id, workspace):
            if resumed:
                folder = StudyFolder.reopen(workspace, self.study_id)
            else:
                folder = StudyFolder.create(workspace, self.study_id, self._strategy.kind, self._request)
        try:
            by_signal = self._make_all(start, folder)
            answer = self._strategy.summary(self._samples)
            self._write(answer, start, folder)
        finally:
            self.problems += tuple(filter(None, [folder.close()]))
        return self._outcome(answer, start.resumed or Resumption(), by_signal)

    def _make_all(self, start: BatchStart, folder: StudyFolder) -> ExitCode | None:
        """Make the runs; return the exit code of a signal."""
        self._samples = self._known(start)
        with Signals() as signals:
            asked = self._strategy.ask(self._samples)
            while asked is not None and signals.exit_code is None:
                goes_on = self._make(asked, start, folder, signals)
                asked = self._strategy.ask(self._samples) if goes_on else None
            code = signals.exit_code
        if not self._asked:
            self._journal.request(())  # an earlier batch that is resumed has ended
        return code

    def _known(self, start: BatchStart) -> list[Sample]:
        """Return the runs of an earlier command that have ended, without warm-ups that have to be made again."""
        if start.resumed is not None:
            found = samples_of(start.resumed.with_ids(self.every), [*start.resumed.finished.values()])
            return [sample for sample in found if sample.result and not _is_cold(sample, start.options.workspace)]
        if not self._is_resumed:
            return []
        runs = stored_runs(start.options.workspace, self.study_id)
        ended = [sample_of_record(run.record) for run in runs if run.is_over]
        known = [sample for sample in ended if self._tells(sample)]
        if start.settings.retry.retries > 0:
            known = [sample for sample in known if not _was_to_be_retried(sample.result)]
        start.screen.end([f"{self._strategy.kind} {self.study_id} goes on after {counted(len(known), 'run')}"])
        self._stopped_by = ""
        return known

    def _make(self, asked: Ask, start: BatchStart, folder: StudyFolder, signals: Signals) -> bool:
        """Make runs; return whether the study goes on after them."""
        options, plugins, screen, settings, _ = start
        with making_folder(self.study_id, options.workspace):
            _make_caches(folder, (*asked.runs, *asked.later))
        if asked.text:
            screen.end([asked.text])
        if any(run.plan.study is not None and run.plan.study.warm_up for run in asked.runs):
            settings = settings.of_warm_ups
        self._asked.update(run.plan.id for run in asked.runs)
        journal, later = self._journal, asked.later
        batch = Batch(asked.runs, options, plugins, screen, journal=journal, settings=settings, later=later)
        self._last = batch.run(signals)
        self._pending += self._last.pending
        ended = [*samples_of(asked.runs, self._last.results)]
        self._samples += ended
        self._results += [sample.result for sample in ended if sample.result and not sample.study.warm_up]
        return self._last.bug is None and all(map(self._tells, ended))

    def _tells(self, sample: Sample) -> bool:
        """Return whether a run tells anything of what it tried, as all do that are no search's.

        A configuration can fill the disk, or be what the engine refuses: where that ends it once more, after the
        machine was to be mended, it is its failure.
        """
        result = sample.result
        if not self._strategy.machine_causes:
            return True
        if result is None or result.cause is Cause.INTERRUPTED:
            return False
        if result.attempt is not None and (result.attempt.next or result.attempt.given_up):
            return False
        if not self._strategy.is_of_machine(result):
            self._ended_by_machine = [varied for varied in self._ended_by_machine if varied != sample.study.varied]
            return True
        if sample.study.varied in self._ended_by_machine and result.code in _MAY_BE_ITS_OWN:
            return True
        self._ended_by_machine.append(sample.study.varied)
        self._stopped_by = result.reason or result.code
        return False

    def _outcome(self, answer: Answer, before: Resumption, by_signal: ExitCode | None) -> RunOutcome:
        """Return the outcome of all runs, without the warm-ups."""
        never = [run for run, result in pair(before.left(self.planned), self._results) if result is None]
        code = self._last.exit_code
        left_out = any(run.plan.id not in self._asked for run in never)  # after a failed warm-up
        if left_out and self._results and code in (ExitCode.OK, ExitCode.BUILD_FAILED):
            code = ExitCode.RUN_FAILED
        outcome = replace(
            self._last,
            results=tuple(self._results),
            not_started=tuple(run.plan.card.name for run in never),
            pending=self._pending,
            exit_code=code,
        )
        outcome = before.whole(self.planned, outcome)
        if by_signal is not None:
            return replace(outcome, exit_code=by_signal)
        if answer.exit_code is None:
            return outcome
        is_bad = bool(outcome.pending) or outcome.bug is not None
        return replace(outcome, exit_code=ExitCode.RUN_FAILED if is_bad else answer.exit_code)

    def _write(self, answer: Answer, start: BatchStart, folder: StudyFolder) -> None:
        """Write and keep what the study came to."""
        secrets = [text for run in self._strategy.firsts for text in secrets_for(run, start.options.environ)]
        self.study = answer.stored
        self.problems += _write_files(answer, folder, secrets)
        self.lines += map(Redactor(secrets).text, answer.lines)
        if self._stopped_by:
            why = f"the machine ended the last run, which counts for nothing: {self._stopped_by}"
            self.lines.append(f"  stopped, {why}")
        self.lines.append(runs_of_text(self.study_id, (SUMMARY, *answer.files)))


def _was_to_be_retried(result: Result | None) -> bool:
    """Return whether a failed run was to have another attempt, which was cut off before it began."""
    if result is None or result.status is not Status.FAILURE or result.code not in TRANSIENT:
        return False
    return result.attempt is None


def _make_caches(folder: StudyFolder, runs: Sequence[PlannedRun]) -> None:
    """Make the caches of runs; what an earlier command left is removed where they begin cold."""
    for planned_run in runs:
        study = planned_run.plan.study
        if study is not None and study.caches and planned_run.plan.blocked is None:
            folder.make_caches(caches_name(study), cache_folders(planned_run.plan), empty=study.caches == "cold")


def _is_cold(sample: Sample, workspace: Path) -> bool:
    """Return whether a run of an earlier command is a warm-up that failed, or whose caches are gone."""
    study, result = sample.study, sample.result
    if not study.warm_up or result is None:
        return False
    return result.status is not Status.SUCCESS or not exists(caches_path(workspace, study.id, caches_name(study)))


def caches_name(study: Study) -> str:
    """Return the name of the caches of a run: its series' own, or with cold ones the run's."""
    is_shared = study.warm_up or study.caches == "warm"
    return f"series-{study.series}" if is_shared else f"series-{study.series}-run-{study.index}"


@contextmanager
def making_folder(study_id: str, workspace: Path) -> Iterator[None]:
    """Turn what keeps the folder of a study from being made, or opened, into a problem of the user's.

    Raises:
        UsageProblem: there is such.
    """
    try:
        yield
    except BlockingIOError as error:
        what = f"study {study_id} is going on in another madlite"
        raise UsageProblem(what, "madlite runs --watch shows it") from error
    except OSError as error:
        where = error.filename or workspace
        what = f"the folder of the study cannot be made: {error.strerror or error} ({where})"
        raise UsageProblem(what, "run madlite in a folder of yours, on a disk with room") from error


def _write_files(answer: Answer, folder: StudyFolder, secrets: Sequence[str] = ()) -> tuple[str, ...]:
    """Write the files of an answer without secrets; return what went wrong."""
    mask = Redactor(secrets).text
    files = {SUMMARY: masked_json(answer.stored, secrets), **{name: mask(answer.files[name]) for name in answer.files}}
    return tuple(filter(None, (folder.write(name, text) for name, text in files.items())))


def save_answer(study_id: str, workspace: Path, answer: Answer) -> tuple[str, ...]:
    """Write what a study came to whose runs other processes made; return what went wrong."""
    try:
        folder = StudyFolder.reopen(workspace, study_id)
    except BlockingIOError:
        return ()  # another command that saw the last run end is writing it
    except OSError as error:
        return (f"the folder of the study cannot be made: {error.strerror or error}",)
    return (*_write_files(answer, folder), *filter(None, [folder.close()]))


def runs_of_text(study_id: str, files: Iterable[str]) -> str:
    """Return the last line of a study: what lists its runs, and where its `files` are."""
    where = study_path(Path(), study_id)
    return "; ".join((f"  madlite runs --of {study_id}", *(str(where / file) for file in files)))


def only_run(planned: Sequence[PlannedRun], kind: str, item: str = "") -> PlannedRun:
    """Return the only run of a search; `item` is what it was planned with.

    Raises:
        UsageProblem: it is none, or one of several.
    """
    if len(planned) != 1:
        names = ", ".join(dict.fromkeys(map(run_name, planned))) or "none"
        of = f" with {item}" if item else ""
        what = f"{kind} takes one run, and the tags select {len(planned)} runs{of}: {names}"
        raise UsageProblem(what, "--mode, --precision and --image-release select among the runs of a tag")
    return planned[0]


def plan_key(planned_run: PlannedRun) -> str:
    """Return the beginning of a plan's digest, by which a search that is resumed knows that it measures the same."""
    return plan_digest(planned_run.plan)[:12]


def run_name(planned_run: PlannedRun) -> str:
    """Return the card of a run with its mode and precision."""
    variant = planned_run.plan.variant
    parts = (planned_run.plan.card.name, variant.mode if variant else "", variant.precision if variant else "")
    return " ".join(filter(None, parts))


# What a study that is resumed left.


def stored_runs(workspace: Path, study_id: str) -> list[StoredRun]:
    """Return the runs of a study in the order in which they began."""
    with open_index(workspace / RUNS) as index:
        found = index.opened(index.ids(RunFilter(of=study_id)))
    return [run for run in found if run.record.study is not None and run.record.study.id == study_id]


class Search(NamedTuple):
    """A study that chooses its runs by those before: `make` returns its strategy by the id of the study.

    `request` is what has to be the same for it to be resumed.
    """

    make: Callable[[str], Strategy]
    kind: str
    request: Mapping[str, object]


def open_search(
    search: Search, planned: PlannedRun, options: Options, journal: BatchLog, named: str | None
) -> StudyRuns:
    """Return the runs of a search that begins, or of the one that is `named`, of the same request.

    The secrets of a request are those of a run that is `planned`.

    Raises:
        UsageProblem: as `find_study`.
    """
    secrets = secrets_for(planned, options.environ)
    public: dict[str, Json] = msgspec.json.decode(masked_json(search.request, secrets))
    if named is None:
        return StudyRuns(search.make(journal.id), journal, public)
    return StudyRuns(search.make(find_study(options.workspace, search.kind, named, public)), journal, resumed=True)


def named_studies(workspace: Path, kind: str, named: str) -> list[StudyStarted]:
    """Return the study of an id or of the beginning of it; of `last` all of a kind, the newest last.

    Raises:
        UsageProblem: there is none, or the id begins several.
    """
    known = {study.study: study for study in studies_of(workspace, kind)}
    if not known:
        raise UsageProblem(f"there is no {kind} to resume in this folder", "leave --resume out to begin one")
    found = [study for study in known.values() if named == "last" or study.study.startswith(named)]
    if named != "last" and len(found) != 1:
        what = f"no {kind} '{named}'" if not found else f"'{named}' begins {len(found)} studies"
        raise UsageProblem(f"{what} in this folder", f"they are: {', '.join([*known][-5:])}")
    return found


def find_study(workspace: Path, kind: str, named: str, request: Mapping[str, Json]) -> str:
    """Return the study to go on with: by its id or the beginning of it, the `last` one of this request.

    Raises:
        UsageProblem: there is none, or it was asked for something else.
    """
    found = named_studies(workspace, kind, named)
    same = [study for study in found if study.request == request]
    if not same:
        before = found[-1].request
        differing = [name for name in dict.fromkeys((*before, *request)) if before.get(name) != request.get(name)]
        what = f"{kind} {found[-1].study} was begun with another {', '.join(differing)}"
        raise UsageProblem(what, "resume it by the same command with --resume, or leave --resume out to begin anew")
    return same[-1].study

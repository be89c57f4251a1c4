"""One engine for all studies: a strategy asks for runs and gets what they came to, until it has its answer.

The engine owns what studies have in common: the folder with its lock and caches, what a study that was cut off left,
which runs count, signals, the outcome of all runs, and the files at the end.  The runs are ordinary ones, tied by the
id of the study.  The event log has what was asked for, and the records have the rest: one that is resumed asks for the
same runs and gets those that have ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from madlite.batch.attempts import TRANSIENT
from madlite.batch.resume import Resumption
from madlite.batch.runner import Batch, BatchRuns, BatchStart
from madlite.errors import ExitCode, UsageProblem
from madlite.model import Cause, Json, Result, Status, Study, Value
from madlite.plan.caches import cache_folders
from madlite.plan.inputs import RUNS
from madlite.plan.planned import PlannedRun
from madlite.reports.index import RunFilter, RunIndex
from madlite.reports.runs import StoredRun
from madlite.run.executor import secrets_for
from madlite.run.screen import RunOutcome, pair
from madlite.run.stop import Signals
from madlite.secrets import Redactor, masked_json
from madlite.store.batches import BatchLog
from madlite.store.study import SUMMARY, StudyFolder, studies_of, study_path
from madlite.study.summary import Sample, sample_of_record, samples_of
from madlite.text import counted, shortened

# of the causes of a machine those that a configuration can have by itself
_MAY_BE_ITS_OWN = frozenset(cause.value for cause in (Cause.DISK, Cause.INODES, Cause.ENGINE))


class Ask(Value, frozen=True):
    """The runs that come next; `later` are those that the command makes after them, `text` is printed before."""

    runs: Sequence[PlannedRun]
    later: Sequence[PlannedRun] = ()
    text: str = ""


class Answer(Value, frozen=True):
    """What a study came to, for programs (`content`) and for people, with further files by their names.

    Without `is_final` nothing is written: it goes on with --resume.
    """

    content: Value
    lines: tuple[str, ...]
    files: dict[str, str] = {}
    is_final: bool = True


class Strategy(ABC):
    """Decides which runs a study makes, and what they tell.

    `planned` are the runs whose results it is about, in a search those that were started; warm-ups come before them.
    `firsts` have all secrets of its runs.  A run that a machine cause ended tells nothing of what it tried: it ends a
    search, until that is resumed.
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
    def ask(self, known: Sequence[Sample]) -> Generator[Ask, Sequence[Sample], None]:
        """Yield what to run next, and get what these runs came to; `known` are runs of an earlier command."""

    @abstractmethod
    def answer(self, samples: Sequence[Sample]) -> Answer:
        """Return what the study came to; `samples` are all planned runs, and the warm-ups that were made."""

    def exit_code(self) -> ExitCode | None:
        """Return the exit code of a search; None where that of the runs is the study's."""
        return None

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
        self._results: list[Sample] = []  # of the runs of this command
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
            outcome = self._make_all(start, folder)
            self._conclude(start, folder, outcome)
        finally:
            self.problems += tuple(filter(None, [folder.close()]))
        return outcome

    def _make_all(self, start: BatchStart, folder: StudyFolder) -> RunOutcome:
        asking = self._strategy.ask(self._known(start))
        with Signals() as signals:
            asked = next(asking, None)
            while asked is not None and signals.exit_code is None:
                ended = self._make(asked, start, folder, signals)
                if ended is None:
                    break
                try:
                    asked = asking.send(ended)
                except StopIteration:
                    break
            code = signals.exit_code
        if not self._asked:
            self._journal.request(())  # an earlier batch that is resumed has ended
        return self._outcome(start.resumed or Resumption(), code)

    def _known(self, start: BatchStart) -> list[Sample]:
        """Return what the runs of an earlier command came to."""
        if start.resumed is not None:
            every = start.resumed.with_ids(self.every)
            found = samples_of(every, [*start.resumed.finished.values()])
            return [sample for sample in found if sample.result is not None]
        if not self._is_resumed:
            return []
        runs = stored_runs(start.options.workspace, self.study_id)
        ended = [sample_of_record(run.record) for run in runs if run.is_over]
        retried = start.settings.retry.retries > 0
        known = [
            sample for sample in ended if self._tells(sample) and not (retried and _was_to_be_retried(sample.result))
        ]
        start.screen.end([f"{self._strategy.kind} {self.study_id} goes on after {counted(len(known), 'run')}"])
        self._stopped_by = ""
        return known

    def _make(self, asked: Ask, start: BatchStart, folder: StudyFolder, signals: Signals) -> Sequence[Sample] | None:
        """Return what runs came to; None where the study does not go on after them."""
        with making_folder(self.study_id, start.options.workspace):
            _make_caches(folder, (*asked.runs, *asked.later))
        if asked.text:
            start.screen.end([asked.text])
        settings = start.settings
        if any(run.plan.study is not None and run.plan.study.warm_up for run in asked.runs):
            settings = settings.of_warm_ups
        self._asked.update(run.plan.id for run in asked.runs)
        batch = Batch(
            asked.runs,
            start.options,
            start.plugins,
            start.screen,
            journal=self._journal,
            settings=settings,
            later=asked.later,
        )
        self._last = batch.run(signals)
        self._pending += self._last.pending
        ended = [*samples_of(asked.runs, self._last.results)]
        self._results += ended
        goes_on = self._last.bug is None and all(map(self._tells, ended))
        return ended if goes_on else None

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

    def _outcome(self, before: Resumption, by_signal: ExitCode | None) -> RunOutcome:
        """Return the outcome of all runs, without the warm-ups."""
        results = [sample.result for sample in self._results if sample.result is not None and not sample.study.warm_up]
        never = [run for run, result in pair(before.left(self.planned), results) if result is None]
        code = self._last.exit_code
        left_out = any(run.plan.id not in self._asked for run in never)  # after a failed warm-up
        if left_out and results and code in (ExitCode.OK, ExitCode.BUILD_FAILED):
            code = ExitCode.RUN_FAILED
        outcome = replace(
            self._last,
            results=tuple(results),
            not_started=tuple(run.plan.card.name for run in never),
            pending=self._pending,
            exit_code=code,
        )
        outcome = before.whole(self.planned, outcome)
        own = self._strategy.exit_code()
        if by_signal is not None:
            outcome = replace(outcome, exit_code=by_signal)
        elif own is not None:
            is_bad = bool(outcome.pending) or outcome.bug is not None
            outcome = replace(outcome, exit_code=ExitCode.RUN_FAILED if is_bad else own)
        return outcome

    def _conclude(self, start: BatchStart, folder: StudyFolder, outcome: RunOutcome) -> None:
        """Write and keep what the study came to."""
        planned = start.resumed.with_ids(self.planned) if start.resumed is not None else self.planned
        warm_ups = [sample for sample in self._results if sample.study.warm_up]
        answer = self._strategy.answer([*warm_ups, *samples_of(planned, outcome.results)])
        secrets = [text for run in self._strategy.firsts for text in secrets_for(run, start.options.environ)]
        files = answer_files(answer, secrets)
        self.study = msgspec.to_builtins(answer.content)
        self.problems += tuple(filter(None, (folder.write(name, text) for name, text in files.items())))
        self.lines += map(Redactor(secrets).text, answer.lines)
        if self._stopped_by:
            why = f"the machine ended the last run, which counts for nothing: {self._stopped_by}"
            self.lines.append(f"  stopped, {why}")
        self.lines.append(runs_of_text(self.study_id, files))


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
        raise UsageProblem(
            f"study {study_id} is going on in another madlite", "madlite runs --watch shows it"
        ) from error
    except OSError as error:
        where = error.filename or workspace
        what = f"the folder of the study cannot be made: {error.strerror or error} ({where})"
        raise UsageProblem(what, "run madlite in a folder of yours, on a disk with room") from error


def answer_files(answer: Answer, secrets: Sequence[str] = ()) -> dict[str, str]:
    """Return the files of an answer by their names, without secrets; none where it is not final."""
    mask = Redactor(secrets).text
    more = {name: mask(text) for name, text in answer.files.items()}
    return {SUMMARY: masked_json(answer.content, secrets), **more} if answer.is_final else {}


def save_answer(study_id: str, workspace: Path, answer: Answer) -> tuple[str, ...]:
    """Write what a study came to whose runs other processes made; return what went wrong."""
    try:
        folder = StudyFolder.reopen(workspace, study_id)
    except BlockingIOError:
        return ()  # another command that saw the last run end is writing it
    except OSError as error:
        return (f"the folder of the study cannot be made: {error.strerror or error}",)
    written = [folder.write(name, text) for name, text in answer_files(answer).items()]
    return tuple(filter(None, (*written, folder.close())))


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


def run_name(planned_run: PlannedRun) -> str:
    """Return the card of a run with its mode and precision."""
    variant = planned_run.plan.variant
    parts = (planned_run.plan.card.name, variant.mode if variant else "", variant.precision if variant else "")
    return " ".join(filter(None, parts))


# What a study that is resumed left.


def stored_runs(workspace: Path, study_id: str) -> list[StoredRun]:
    """Return the runs of a study in the order in which they began, without those whose record is in doubt."""
    with RunIndex(workspace / RUNS) as index:
        index.refresh()
        found = index.opened(index.ids(RunFilter(of=study_id)))
    return [run for run in found if not run.doubt and run.record.study is not None and run.record.study.id == study_id]


def find_study(workspace: Path, kind: str, named: str, request: Mapping[str, Json]) -> str:
    """Return the study to go on with: by its id or the beginning of it, the `last` one of this request.

    Raises:
        UsageProblem: there is none, or it was asked for something else.
    """
    known = {study.study: study for study in studies_of(workspace, kind)}
    if not known:
        raise UsageProblem(f"there is no {kind} to resume in this folder", "leave --resume out to begin one")
    found = [study for study in known.values() if named == "last" or study.study.startswith(named)]
    if named != "last" and len(found) != 1:
        what = f"no {kind} '{named}'" if not found else f"'{named}' begins {len(found)} studies"
        raise UsageProblem(f"{what} in this folder", f"they are: {', '.join([*known][-5:])}")
    same = [study for study in found if study.request == request]
    if not same:
        differing = "; ".join(_differences(found[-1].request, request))
        what = f"{kind} {found[-1].study} was begun with other options: {differing}"
        raise UsageProblem(what, "resume it by the same command with --resume, or leave --resume out to begin anew")
    return same[-1].study


def _differences(before: Mapping[str, Json], now: Mapping[str, Json]) -> list[str]:
    names = [name for name in dict.fromkeys((*before, *now)) if before.get(name) != now.get(name)]
    return [f"{name} {_short(before.get(name))}, now {_short(now.get(name))}" for name in names]


def _short(value: Json) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return repr(shortened(text, 80)) if value not in (None, [], "") else "none"

"""Read the log of a Primus run: torchtitan's or Megatron's lines behind Primus's own prefix, and what Primus says.

The prefix is `[20261121 00:17:16][rank-0/8][INFO]     `, in files with the user's, the module's and the host's name
before the rank; it names the global rank and the world size.  On one node the last rank's iterations are there twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from madlite import EffectiveConfig, Ended, Event, Line, Reader, RunPlan, Step
from madlite_plugins.megatron_lm.reader import ARGUMENTS, FORMATS, RAMP_UP, MegatronReader, precision_of
from madlite_plugins.torchtitan.reader import TorchtitanReader

_OPTIONS = {
    **ARGUMENTS,
    "training.steps": "steps",
    "training.seq_len": "seq_len",
    "training.local_batch_size": "micro_batch",
    "training.global_batch_size": "global_batch",
    "lr_scheduler.warmup_steps": "warmup_steps",
    "parallelism.tensor_parallel_degree": "tp",
    "parallelism.pipeline_parallel_degree": "pp",
    "parallelism.context_parallel_degree": "cp",
    "parallelism.expert_parallel_degree": "ep",
}
_OPTION = re.compile(rf"\s({'|'.join(map(re.escape, _OPTIONS))})\s+: (\d{{1,12}}) \(int\)")
_FORMAT = re.compile(rf"\s({'|'.join(FORMATS)})\s+: (\w{{1,40}}) \((?:bool|str|NoneType)\)")
_RAMP_UP = re.compile(rf"\s{RAMP_UP}\s+: (?!None )\S.* \(\w+\)")
_MOE_FP8 = "use_moe_fp8"  # FP8 of the experts alone, of which torchtitan below Primus says nothing
_WORLD = re.compile(r"\[Primus:Env\] rank=\d+, world_size=(\d{1,9}),")
_END = re.compile(
    r"\b(?:(?:torchrun|primus launcher) "
    r"(?:exited with code (?P<code>\d{1,3})|crashed due to signal (?P<signal>\d{1,3}))"
    r"|torchrun finished successfully \(code 0\))\s*$"
)
_LAST = frozenset("0123456789) ")  # what such a line ends with, a quicker test
_PREFIX = re.compile(
    r"\[\d{8} \d\d:\d\d:\d\d\](?:\[[^\[\]]*\]){0,4}\[rank-\d+/\d+\]\[(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s*\]"
)
_LAUNCHER = re.compile(
    r"\[Primus:\w+\] |\(?PrimusMaster\s+pid=|primus/cli/main\.py\b|\bprimus-cli(?:-\w+)?(?:\.sh)?\b"
    r"|\] \[(?:INFO|ERROR)\] \[(?:direct|container|slurm)\] |primus launcher (?:exited|crashed) "
)
_FRAME = re.compile(r'File "[^"]*/primus/(?:backends|cli|core|modules|platforms)/[^"]*\.py", line ')


class PrimusReader:
    """Follows one log: with both frameworks' readers until one has found a step."""

    def __init__(self, plan: RunPlan | None = None) -> None:
        self._megatron = MegatronReader(plan)
        self._readers: tuple[Reader, ...] = (self._megatron, TorchtitanReader())
        self._reader: Reader | None = None
        self._facts: dict[str, str] = {}
        self._formats: dict[str, str] = {}
        self._moe_alone = plan is not None and _MOE_FP8 in f"{plan.settings.get('flags', '')} {plan.run_args}"

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the events of one line."""
        text = line.text
        if text[-1:] in _LAST and ("code " in text or "signal " in text) and (found := _END.search(text)):
            return (Ended(marker=found[0].strip(), code=int(found["code"] or -int(found["signal"] or 0))),)
        if not self._reader:
            return self._find_reader(line)
        if " (" in text or "Primus:Env" in text:  # perhaps facts of a training that was started again
            return (*self._read_facts(text), *self._reader.feed(line))
        return self._reader.feed(line)

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return the events of files the framework left in `outputs`."""
        return [event for reader in self._followed for event in reader.finish(outputs)]

    @property
    def _followed(self) -> tuple[Reader, ...]:
        return (self._reader,) if self._reader else self._readers

    def _find_reader(self, line: Line) -> Iterator[Event]:
        yield from self._read_facts(line.text)
        for reader in self._readers:
            for event in reader.feed(line):
                if isinstance(event, Step) and event.phase == "train":
                    self._reader = reader
                if not (self._moe_alone and isinstance(event, EffectiveConfig) and event.marked_precisions):
                    yield event

    def _read_facts(self, text: str) -> Iterator[Event]:
        fact: dict[str, str] = {}
        if RAMP_UP in text and _RAMP_UP.search(text):
            self._megatron.ramp_up()
        if " (int)" in text and (found := _OPTION.search(text)):
            fact = {_OPTIONS[found[1]]: found[2]}
        elif "Primus:Env" in text and (found := _WORLD.search(text)):
            fact = {"world_size": found[1]}
        elif (" (bool)" in text or " (str)" in text or " (NoneType)" in text) and (found := _FORMAT.search(text)):
            self._formats[found[1]] = found[2]
            fact = precision_of(self._formats)
        if fact.items() - self._facts.items():
            self._facts.update(fact)
            self._megatron.learn(fact)
            yield EffectiveConfig(values=fact)


def detect(head: Sequence[str]) -> float:
    """Say how surely these lines are Primus's: its prefix, its own remarks, its launchers' lines, or its frames."""
    if any(_PREFIX.search(text) for text in head):
        return 0.98  # MaxText below it says its steps itself
    if any(_LAUNCHER.search(text) for text in head):
        return 0.95
    return 0.4 if any('File "' in text and _FRAME.search(text) for text in head) else 0.0

"""Read torchtune's training log, as recipes of 0.2 to 0.6 and of AMD's fork print it (docs/backends/torchtune.md).

Their loggers write step lines to a file of their own, or to stdout, there behind the progress bar, which has the loss:
`1|3|Loss: 6.914547443389893:  38%|███▊      | 3/8 [00:02<00:03,  1.35it/s]`, that is epoch, step and loss.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from madlite import NUMBER, EffectiveConfig, Ended, Event, Line, Phase, Quantity, Step, Summary, number, without_label
from madlite_plugins.torchtune.config_lines import ConfigLines, begins_config
from madlite_plugins.torchtune.step_lines import StepLines, is_step_line, read_disk_log
from madlite_plugins.torchtune.token_count import TokenCount

END_MARKS = (
    "The full model checkpoint, including all weights and configurations, has been saved",
    "you have set adapter_only=True, so only adapter weights will be saved",
)
_BAR = re.compile(rf"\b\d{{1,6}}\|(\d{{1,12}})\|Loss: ({NUMBER}):\s+\d{{1,3}}%\|", re.IGNORECASE)
_LENGTH = re.compile(r"\|Loss: [^|]*%\|[^|]*\| \d{1,9}/(\d{1,9}) \[")
_DISK_LOG = re.compile(r"Writing logs to (?:.*/)?(log_\d{1,12}\.txt)\s*$")
_SUMMARY = re.compile(
    rf"((?:Max memory alloc|Average tokens/s/gpu|Unmasked tokens/s/gpu)(?: \(last half\))?):\s+({NUMBER})\s*$"
)


class TorchtuneReader:
    """Follows one log."""

    def __init__(self, tp: str = "1") -> None:
        self._configs: dict[int | None, ConfigLines] = {}  # of each rank
        self._tokens = TokenCount(tp)
        self._steps = StepLines()
        self._config: dict[str, str] = {}  # of the configuration
        self._bars: dict[int | None, int] = {}  # the step that each rank's bar showed last
        self._length = 0  # steps of an epoch, as the bar has them
        self._trained = False
        self._complete = False  # whether steps with their speed were in the log
        self._disk_log = ""

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the line's steps, or what else it says of the run."""
        text = without_label(line)
        if "%|" in text or "Step " in text:
            return tuple(self._tokens.corrected(self._read_progress(line)))
        config = self._configs.setdefault(line.rank, ConfigLines())
        if config.open and (values := config.read(text)):
            self._config |= values
            self._tokens.read_config(values)
            return (EffectiveConfig(values=values),)
        return () if config.open else tuple(self._tokens.corrected(self._read_remarks(text, line.t_s, config)))

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return the steps of the file that the log names, where the log itself has bars alone."""
        if self._complete or not self._disk_log:
            return ()
        return self._tokens.corrected(read_disk_log(outputs, self._disk_log))

    def _read_progress(self, line: Line) -> list[Event]:
        found: list[Event] = [*self._read_bars(line), *self._steps.read(line.text, line.t_s, line.rank)]
        steps = [event for event in found if isinstance(event, Step)]
        self._trained = self._trained or bool(steps)
        self._complete = self._complete or any(Quantity.TOKENS_PER_S_PER_GPU in step.values for step in steps)
        return found

    def _read_bars(self, line: Line) -> Iterator[Event]:
        """Yield what the bar alone tells: the length of the run, and losses where step lines have not each of them."""
        alone = not self._complete or self._config.get("log_freq", "1") != "1"
        for bar in _BAR.finditer(line.text):
            if alone and int(bar[1]) != self._bars.get(line.rank):
                yield Step(n=int(bar[1]), values={Quantity.LOSS: number(bar[2])}, rank=line.rank, t_s=line.t_s)
            self._bars[line.rank] = int(bar[1])
        if not self._length and (length := _LENGTH.search(line.text)):
            self._length, epochs = int(length[1]), self._config.get("epochs", "1")
            steps = self._length * (int(epochs) if epochs.isdecimal() and len(epochs) < 7 else 1)
            yield EffectiveConfig(values={"steps": str(steps)})

    def _read_remarks(self, text: str, t_s: float, config: ConfigLines) -> Iterator[Event]:
        self._tokens.read_remark(text)
        if begins_config(text):
            config.begin()
            self._tokens.begin()
            if self._trained:
                self._bars, self._length, self._trained, self._complete, self._disk_log = {}, 0, False, False, ""
                yield Phase(name="train", t_s=t_s, begins=True)
        elif found := _DISK_LOG.search(text):
            self._disk_log = found[1]
        elif found := _SUMMARY.search(text):
            yield Summary(values={found[1]: found[2]})
        for mark in END_MARKS:
            if mark in text:
                yield Ended(marker=mark)


def detect(head: Sequence[str]) -> float:
    """Say how surely these lines are torchtune's: a configuration, a step line, the bar, else a traceback."""
    if any((begins_config(text) and "Recipe" in text) or is_step_line(text) for text in head):
        return 0.9
    if any(_BAR.search(text) for text in head):
        return 0.5
    return 0.3 if any("/torchtune/" in text and 'File "' in text for text in head) else 0.0

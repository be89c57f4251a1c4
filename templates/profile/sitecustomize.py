"""Profile the last steps of a training by torch's own profiler, whatever trains with torch optimizers.

run.sh puts this folder on PYTHONPATH with `MADLITE_PROFILE="LAST STEPS FILE"`.  LAST is the optimizer's last step that
is measured: trainers print its time after it, so the profiler starts at the end of the next one.  One more step warms
it up, the STEPS after that one are recorded, and the trace of rank 0 is written to FILE as Chrome's trace events,
gzip-compressed.  All ranks are profiled, so that none waits for a slower one.  Nothing of it happens before step LAST
but one counted call per step; what goes wrong here is one line of the log, and the training goes on.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
BEGIN, END = "madlite.begin", "madlite.end"
"""Ranges of no length around the recorded steps: one over all of them would not nest with the optimizer's own."""


def is_called_by(package: str) -> bool:
    """Return whether code of a package is being executed: imported it may be by others, as by accelerate."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] != package:
        frame = frame.f_back
    return frame is not None


class Recorder:
    """Counts the steps of the first optimizer that steps, and records those asked for."""

    def __init__(self, last: int, steps: int, path: Path) -> None:
        self._first, self._end, self._path = last + 2, last + 2 + steps, path
        self._optimizer: object = None
        self._count = 0
        self._profiler: Any = None

    def note(self, optimizer: object, *_: object) -> None:
        """Take that an optimizer stepped; of several those after the first are parts of its step."""
        if self._optimizer is None:
            self._optimizer = optimizer
        if optimizer is not self._optimizer or self._count > self._end:
            return
        self._count += 1
        try:
            if self._count == 1 and is_called_by("deepspeed"):
                raise RuntimeError("DeepSpeed calls its optimizer several times in a step")
            self._act()
        except Exception as error:  # noqa: BLE001 - whatever a version of torch has else, the training goes on
            self._count = self._end + 1
            sys.stderr.write(f"madlite: no profile: {type(error).__name__}: {error}\n")

    def _act(self) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile, record_function

        has_gpu = torch.cuda.is_available()
        if self._count == self._first - 1:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if has_gpu else [])]
            self._profiler = profile(activities=activities, record_shapes=True)
            self._profiler.start()
        elif self._count == self._first:
            if has_gpu:
                torch.cuda.synchronize()
            with record_function(BEGIN):
                pass
        elif self._count == self._end:
            if has_gpu:
                torch.cuda.synchronize()
            with record_function(END):
                pass
            self._profiler.stop()
            if int(os.environ.get("RANK", "0")) == 0:
                partial = self._path.with_name(f"partial-{self._path.name}")
                self._profiler.export_chrome_trace(str(partial))
                partial.replace(self._path)
            self._profiler = None


class BeforeOptimizers:
    """Registers the recorder once torch's optimizers are imported; torch is not imported for it."""

    name = "torch.optim.optimizer"

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Return the module's own spec, whose loader registers the recorder at its end."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                module.register_optimizer_step_post_hook(self._recorder.note)

            loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def run_hidden_sitecustomize() -> None:
    """Run the `sitecustomize` that Python would have imported, had this one not come first: the next on the path."""
    folders = [Path(folder).resolve() for folder in sys.path]
    elsewhere = sys.path[folders.index(HERE) + 1 :] if HERE in folders else []
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if asked := os.environ.get("MADLITE_PROFILE"):
    last_step, step_count, trace = asked.split(" ", 2)
    sys.meta_path.insert(0, BeforeOptimizers(Recorder(int(last_step), int(step_count), Path(trace))))  # type: ignore[arg-type]
run_hidden_sitecustomize()

"""A plugin of runtimes, each with one thing wrong that `RuntimeConformance` tells."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager

from msgspec.structs import replace

from madlite import CommandRuntime, Problem, hookimpl


class Wrapped:
    """A session with something wrong; what is not named here goes to the real one."""

    def __init__(self, real, **wrong):
        self._real = real
        vars(self).update(wrong)

    def __getattr__(self, name):
        return getattr(self._real, name)


class Flawed(CommandRuntime):
    name = "good"

    def __init__(self):
        super().__init__({"PATH": os.environ["PATH"]})

    @contextmanager
    def open(self, plan):
        with super().open(plan) as real:
            yield self.session(real)

    def session(self, real):
        return real


class Unusable(Flawed):
    name = "unusable"

    def available(self):
        return Problem(where="runtime unusable", what="its engine is not there")


class Bare(Flawed):
    name = "bare"

    def session(self, real):
        real._env.pop("KIT", None)
        return real


class Late(Flawed):
    """Passes output on when the action has ended."""

    name = "late"

    def session(self, real):
        def run(action, out):
            chunks = []
            done = real.run(action, chunks.append)
            for chunk in chunks:
                out(chunk)
            return done

        return Wrapped(real, run=run)


class Killing(Flawed):
    """Kills at once."""

    name = "killing"

    def session(self, real):
        return Wrapped(real, stop=lambda grace_s: os.killpg(real._actions[-1].pid, signal.SIGKILL))


class Forgiving(Flawed):
    name = "forgiving"

    def command(self, plan, argv, cwd):
        return ["sh", "-c", '"$0" "$@" || true', *argv]


class Losing(Flawed):
    """Loses one of the streams."""

    name = "losing"

    def session(self, real):
        def run(action, out):
            return real.run(action, lambda chunk: chunk.stream == 1 and out(chunk))

        return Wrapped(real, run=run)


class Deaf(Flawed):
    name = "deaf"

    def session(self, real):
        return Wrapped(real, stop=lambda grace_s: None)


class Leaving(Flawed):
    """Leaves what an action left running."""

    name = "leaving"

    @contextmanager
    def open(self, plan):
        with super().open(replace(plan, keep_alive=True)) as real:
            yield real


ALL = {kind.name: kind for kind in (Flawed, Unusable, Bare, Late, Killing, Forgiving, Losing, Deaf, Leaving)}


def install(site):
    """Have this plugin installed for the command that this process becomes (`first` of tests/commands.py)."""
    sys.path.append(site)


@hookimpl
def madlite_runtimes():
    return [kind() for kind in ALL.values()]

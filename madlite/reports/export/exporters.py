"""The formats that an export knows: madlite's own by their names, then those that plugins bring."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping

from madlite.backends.loader import Plugins
from madlite.errors import MadliteError, PluginError, UsageProblem, nearest_words, one_hint
from madlite.model import Exported, Exporter, ExportOptions, ExportRow, Value

_OWN = {
    "csv": "files:CsvExporter",
    "jsonl": "files:JsonLinesExporter",
    "parquet": "parquet:ParquetExporter",
    "sqlite": "sqlite:SqliteExporter",
    "postgresql": "postgresql:PostgresqlExporter",
    "prometheus": "prometheus:PrometheusExporter",
    "hud": "hud:HudExporter",
}
OWN_FORMATS = tuple(_OWN)
_APPEND = "append"


class Format(Value, frozen=True):
    """One format: what writes it, and the distribution that brought it, "" for madlite's own."""

    exporter: Exporter
    distribution: str = ""

    def write(self, rows: Iterable[ExportRow], target: str, options: ExportOptions) -> Exported:
        """Write rows by a plugin's exporter or one of ours, an exception of the former as a sentence.

        Raises:
            MadliteError: as `Exporter.write`, or the plugin broke.
        """
        name = self.exporter.name
        self._check(options)
        if not self.distribution:
            return self.exporter.write(rows, target, options)
        try:
            done = self.exporter.write(rows, target, options)
        except MadliteError:
            raise
        except Exception as error:
            words = " ".join(str(error).split())[:300]
            what = f"export to {name} (plugin of {self.distribution}) failed: {type(error).__name__}: {words}"
            raise PluginError(what, "madlite plugins") from error
        if not isinstance(done, Exported):
            raise PluginError(f"export to {name} (plugin of {self.distribution}) returned no Exported: {done!r:.100}")
        return done

    def _check(self, options: ExportOptions) -> None:
        known = tuple(getattr(self.exporter, "options", ()))
        if options.append and _APPEND not in known:
            what = f"{self.exporter.name} knows no --append"
            raise UsageProblem(what, "a database or tracker has each result once; a page of now is written as a whole")
        names = [name for name in known if name != _APPEND]
        for name in options.values:
            if name not in names:
                has = f"it has {', '.join(names)}" if names else "it has none"
                close = nearest_words(name, names, most=1)
                hint = one_hint(f"did you mean {close[0]}?" if close else "", has)
                raise UsageProblem(f"--option {name}: {self.exporter.name} has no such option", hint)


def find_format(name: str, load: Callable[[], Plugins]) -> Format:
    """Return a format by its name; plugins are loaded where it is none of madlite's own.

    Raises:
        UsageProblem: there is none.
    """
    if name in _OWN:
        return _own(name)
    brought = _brought(load())
    if name not in brought:
        known = [*_OWN, *brought]
        close = nearest_words(name, known, most=1) or [one for one in known if one.startswith(name[:4]) and name]
        hint = one_hint(f"did you mean {close[0]}?" if close else "", f"--to {', '.join(known)}")
        raise UsageProblem(f"'{name}' is no format of an export", hint)
    return brought[name]


def all_formats(load: Callable[[], Plugins]) -> tuple[Format, ...]:
    """Return every format, madlite's own first."""
    return (*map(_own, _OWN), *_brought(load()).values())


def _own(name: str) -> Format:
    module, _, kind = _OWN[name].partition(":")
    return Format(exporter=getattr(importlib.import_module(f"madlite.reports.export.{module}"), kind)())


def _brought(plugins: Plugins) -> Mapping[str, Format]:
    return {
        name: Format(exporter=exporter, distribution=plugin.distribution)
        for name, (exporter, plugin) in plugins.exporters().items()
        if name not in _OWN
    }

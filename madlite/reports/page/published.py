"""Published numbers beside the series of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import asdict

from madlite.model import Reference
from madlite.reports.page.run_details import trusted
from madlite.reports.page.values import ReferenceMark, References
from madlite.reports.references import Match, Published, matching, model_key, of_record, of_series
from madlite.reports.runs import StoredRun
from madlite.reports.series import Series

_MOST = 5  # of one series


def references_of(published: Sequence[Published], runs: Iterable[StoredRun] = ()) -> References:
    """Return a function that gives a series the published numbers it can be compared with, the nearest first.

    Of a series of stored runs more is known than its dimensions: the GPU's full name, the image's release.
    """
    of_model: dict[str, list[Reference]] = {}
    for one in published:
        of_model.setdefault(model_key(one.reference.model), []).append(one.reference)
    origins = {id(one.reference): "" if one.from_plugin else f" in {one.origin}" for one in published}
    known = {run.folder.name: run for run in trusted(runs)}

    def marks(series: Series) -> Sequence[ReferenceMark]:
        if not of_model:
            return ()
        run = next((known[sample.run] for sample in reversed(series.samples) if sample.run in known), None)
        measured = of_record(run.record)[0] if run is not None else of_series(series)
        references = of_model.get(model_key(measured.model), ())
        found = matching(references, **asdict(measured), metric=series["metric"])
        return tuple(_mark(one, origins[id(one.reference)]) for one in found[:_MOST])

    return marks


def _mark(match: Match, origin: str) -> ReferenceMark:
    one = match.reference
    label = ", ".join(filter(None, (f"{one.source}{origin}", one.date)))
    return ReferenceMark(value=one.value, label=label, differences=match.differences, url=one.url)

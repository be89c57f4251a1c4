"""The backend's page says every setting, mode and metric by its name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from madlite.testing.flaws import Flaw
from madlite.testing.subject import NAME_IT, Subject

CHECK = "docs"


def check_docs(subject: Subject) -> Iterator[Flaw]:
    """Yield what the pages do not name."""
    if not subject.docs:
        mend = 'docs = ["docs/backend.md"]: what can be set, which modes and metrics there are'
        yield Flaw(check=CHECK, where=f"backend {subject.name}", what="there is no page about it", mend=mend)
        return
    texts = []
    for path in subject.docs:
        if path.is_file():
            texts.append(path.read_text(encoding="utf-8"))
        else:
            yield Flaw(check=CHECK, where=f"page {path}", what="it is not there", mend=NAME_IT)
    page, pages = "\n".join(texts), ", ".join(path.name for path in subject.docs)
    for kind, names in _names(subject).items():
        for name in names:
            if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", page):
                mend = f"write `{name}` and what it means into {pages}"
                yield Flaw(check=CHECK, where=f"{kind} {name}", what=f"{pages} does not name it", mend=mend)


def _names(subject: Subject) -> dict[str, list[str]]:
    drafts = [made.draft for made in subject.made]
    rules = [draft.result_rule for draft in drafts if draft.result_rule.kind == "steps"]
    metrics = {rule.headline_metric for rule in rules} | {one.metric for rule in rules for one in rule.mad}
    return {
        "setting": sorted({key for draft in drafts for key in draft.settings}),
        "mode": sorted({draft.variant.mode for draft in drafts if draft.variant and draft.variant.mode}),
        "metric": sorted(metrics),
    }

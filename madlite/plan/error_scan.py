"""Which text in a script's output makes a run with a result a FAILURE: madengine 2's keys and defaults.

Keys, in the context and on a card: `log_error_pattern_scan`, `log_error_patterns`, `log_error_benign_patterns`.
"""

from __future__ import annotations

import msgspec

from madlite.errors import UsageProblem
from madlite.files import wrong_key
from madlite.model import Card, Draft, ErrorScan
from madlite.plan.context import Context
from madlite.plan.context_keys import ScanKeys
from madlite.plan.values import as_bool

PATTERNS = (
    "OutOfMemoryError",
    "HIP out of memory",
    "CUDA out of memory",
    "RuntimeError:",
    "AssertionError:",
    "ValueError:",
    "SystemExit",
    "failed (exitcode:",
    "Traceback (most recent call last)",
    "FAILED",
    "Exception:",
    "ImportError:",
    "ModuleNotFoundError:",
)
# what Ray's metrics agent, Python's warnings and AMD's profilers print of a run that is well
BENIGN = (
    "Failed to establish connection to the metrics exporter agent",
    "RpcError: Running out of retries to initialize the metrics agent",
    "Metrics will not be exported",
    "FutureWarning",
    "Opened result file:",
    "SQLite3 generation ::",
    "rocpd_op:",
    "rpd_tracer:",
)
_KEYS = ScanKeys.__struct_fields__


def make_error_scan(card: Card, context: Context, draft: Draft) -> ErrorScan | None:
    """Return what to look for in the output of a script; None for a rendered run, and where the scan is switched off.

    The context's switch and patterns win over the card's, harmless text of both is added to the usual.

    Raises:
        UsageProblem: a key of the card or of the context has the wrong type.
    """
    if draft.templates or draft.result_rule.kind == "steps":
        return None
    own, asked = _of_card(card), context.known
    if not _is_on(own, asked, card, context):
        return None
    return ErrorScan(
        patterns=asked.log_error_patterns or own.log_error_patterns or PATTERNS,
        benign=(*BENIGN, *own.log_error_benign_patterns, *asked.log_error_benign_patterns),
    )


def error_scan_origin(card: Card, context: Context) -> str:
    """Return who changed the scan, "" where nobody did."""
    changed = ["card"] if any(key in card.extra for key in _KEYS) else []
    changed += [context.origins[key] for key in _KEYS if key in context.origins]
    return ", ".join(dict.fromkeys(changed))


def _of_card(card: Card) -> ScanKeys:
    given = {key: card.extra[key] for key in _KEYS if card.extra.get(key) not in (None, [])}
    try:
        return msgspec.convert(given, ScanKeys)
    except msgspec.ValidationError as error:
        raise UsageProblem(f"{_named(card)}: {wrong_key(error)[1]}") from None


def _is_on(own: ScanKeys, asked: ScanKeys, card: Card, context: Context) -> bool:
    key = "log_error_pattern_scan"
    by_context = asked.log_error_pattern_scan is not None
    said = asked.log_error_pattern_scan if by_context else own.log_error_pattern_scan
    try:
        return said is None or as_bool(said)
    except ValueError:
        where = context.origins.get(key, "context") if by_context else _named(card)
        raise UsageProblem(f"{where}: key '{key}' is wrong: {said!r} is neither true nor false") from None


def _named(card: Card) -> str:
    return f"card '{card.name}' ({card.source})"

"""AMD's DLRMBenchmark: a recommender of MLPerf's shape on made-up data (docs/backends/dlrm.md)."""

from __future__ import annotations

from collections.abc import Iterable

from madlite import Backend, FailureRule, hookimpl
from madlite_plugins.dlrm.backend import Dlrm

_RULES = (
    FailureRule(
        pattern=r"madlite: \S+ has no launch_training_single_node\.sh",
        cause="missing_file",
        hint="run in the release's image (docker), or name a copy: --set env.DLRM_BENCHMARK_ROOT=FOLDER",
    ),
    FailureRule(
        pattern=r"No module named '?(?:torchrec|fbgemm_gpu|torchmetrics|mlperf_logging|pyre_extensions)\b",
        cause="missing_package",
        hint="the benchmark needs torchrec, fbgemm_gpu and MLPerf's logging: run it in its image",
    ),
)


@hookimpl
def madlite_backends() -> Iterable[Backend]:
    """Bring the backend `dlrm`."""
    return [Dlrm()]


@hookimpl
def madlite_failure_rules() -> Iterable[FailureRule]:
    """Explain what is missing outside the image."""
    return _RULES

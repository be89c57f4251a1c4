"""The frozen values and protocols that pass between rooms; no behaviour beyond what they are."""

from __future__ import annotations

from madlite.model.cards import Card, CardItem, Gpu, Machine, Problem, Request, TreeCards, Vendor
from madlite.model.plans import (
    Action,
    Architecture,
    Attention,
    Blocked,
    DataUse,
    EngineOptions,
    ErrorScan,
    FileTemplate,
    Image,
    Login,
    MadMetric,
    Mount,
    Place,
    ResultRule,
    RunPlan,
    RunSpec,
    Shape,
    Study,
    Traits,
    Variant,
)
from madlite.model.protocols import Backend, Reader, Runtime, Say, Session
from madlite.model.results import (
    STEPS_APART,
    Asset,
    Check,
    Compute,
    Diagnosis,
    EffectiveConfig,
    Ended,
    Event,
    FailureRule,
    Finding,
    GpuUse,
    ImageUsed,
    Line,
    Metric,
    Phase,
    Provenance,
    Reference,
    Result,
    Row,
    Step,
    Summary,
    Telemetry,
    Unread,
    Window,
)
from madlite.model.sessions import PROBE_BYTES, Chunk, Completed, Exit, JobOutcome, Sink
from madlite.model.values import (
    QUANTITIES,
    SPEEDS,
    Cause,
    EnvValue,
    Json,
    Quantity,
    Scalar,
    Secret,
    Status,
    Value,
    json_line,
    to_json,
)

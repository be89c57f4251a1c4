"""The frozen values and protocols that pass between rooms; no behaviour beyond what they are."""

from __future__ import annotations

from madlite.model.architectures import Architecture, Attention, Shape
from madlite.model.cards import Card, CardItem, Problem, Request, TreeCards
from madlite.model.drafts import Action, Draft, ErrorScan, FileTemplate, MadMetric, ResultRule, Variant
from madlite.model.jsontext import to_json
from madlite.model.judged import Compute, Diagnosis, Window, Witness
from madlite.model.machines import Gpu, Machine, Vendor
from madlite.model.plans import Blocked, DataUse, EngineOptions, Image, Login, Mount, Place, RunPlan, Study, Traits
from madlite.model.protocols import Backend, Reader, Runtime, Say, Session
from madlite.model.quantities import QUANTITIES, SPEEDS, Quantity
from madlite.model.results import (
    STEPS_APART,
    Asset,
    EffectiveConfig,
    Ended,
    Event,
    FailureRule,
    Finding,
    ImageUsed,
    Line,
    Metric,
    Phase,
    Reference,
    Result,
    Row,
    Step,
    Summary,
)
from madlite.model.sensed import GpuUse, Provenance, Telemetry
from madlite.model.sessions import PROBE_BYTES, Chunk, Completed, Exit, JobOutcome, Sink
from madlite.model.values import EnvValue, Json, Scalar, Secret, Value
from madlite.model.verdicts import Cause, Status

__all__ = [
    "Action",
    "Architecture",
    "Asset",
    "Attention",
    "Backend",
    "Blocked",
    "Card",
    "CardItem",
    "Cause",
    "Chunk",
    "Completed",
    "Compute",
    "DataUse",
    "Diagnosis",
    "Draft",
    "EffectiveConfig",
    "Ended",
    "EngineOptions",
    "EnvValue",
    "ErrorScan",
    "Event",
    "Exit",
    "FailureRule",
    "FileTemplate",
    "Finding",
    "Gpu",
    "GpuUse",
    "Image",
    "ImageUsed",
    "JobOutcome",
    "Json",
    "Line",
    "Login",
    "Machine",
    "MadMetric",
    "Metric",
    "Mount",
    "PROBE_BYTES",
    "Phase",
    "Place",
    "Problem",
    "Provenance",
    "QUANTITIES",
    "SPEEDS",
    "Quantity",
    "Reader",
    "Reference",
    "Request",
    "Result",
    "ResultRule",
    "Row",
    "RunPlan",
    "Runtime",
    "STEPS_APART",
    "Say",
    "Scalar",
    "Secret",
    "Session",
    "Shape",
    "Sink",
    "Status",
    "Step",
    "Study",
    "Traits",
    "Summary",
    "Telemetry",
    "TreeCards",
    "Value",
    "Variant",
    "Vendor",
    "Window",
    "Witness",
    "to_json",
]

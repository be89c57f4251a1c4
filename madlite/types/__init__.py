"""The frozen values and protocols that pass between rooms; no behaviour beyond what they are."""

from __future__ import annotations

from madlite.types.architectures import Architecture, Attention, Shape
from madlite.types.cards import Card, CardItem, Problem, Request, TreeCards
from madlite.types.drafts import Action, Draft, ErrorScan, FileTemplate, MadMetric, Quantity, ResultRule, Variant
from madlite.types.jsontext import to_json
from madlite.types.judged import Compute, Diagnosis, Window, Witness
from madlite.types.machines import Gpu, Machine, Vendor
from madlite.types.plans import Blocked, DataUse, EngineOptions, Image, Login, Mount, Place, RunPlan, Traits
from madlite.types.protocols import Backend, Reader, Runtime, Say, Session
from madlite.types.results import (
    STEPS_APART,
    Asset,
    EffectiveConfig,
    Ended,
    Event,
    Exit,
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
from madlite.types.sensed import GpuUse, Provenance, Telemetry
from madlite.types.values import EnvValue, Json, Scalar, Secret, Value
from madlite.types.verdicts import Cause, Status

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
    "Json",
    "Line",
    "Login",
    "Machine",
    "MadMetric",
    "Metric",
    "Mount",
    "Phase",
    "Place",
    "Problem",
    "Provenance",
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
    "Status",
    "Step",
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

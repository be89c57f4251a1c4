"""The frozen values and protocols that pass between rooms; no behaviour beyond what they are."""

from madlite.model.plans import *
from madlite.model.protocols import *
from madlite.model.results import *
from madlite.model.values import *

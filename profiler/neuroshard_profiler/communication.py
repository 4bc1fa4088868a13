"""Collects records of all-to-alls: as one rank of torchrun, or from the simulator. Measures nothing itself."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from neuroshard_api.presets import DevicePreset
from neuroshard_api.records import ProfileRecord
from neuroshard_planner.costs.simulator import DeviceSimulator
from neuroshard_planner.costs.simulator_communication import Network, with_start_skew

from neuroshard_profiler.budget import Budget
from neuroshard_profiler.comm_sampling import CommunicationSpace, draw_communication_sample
from neuroshard_profiler.records import RecordsFile

_STREAM = 1  # of the seed's random numbers; compute samples are drawn from another

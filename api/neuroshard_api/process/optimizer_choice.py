"""Optimizers as options of commands take them, spelt out so that parsing and help import no documents."""

from typing import Literal

OptimizerChoice = Literal["sgd", "rowwise_adagrad", "adagrad", "adam"]

"""Commands that make a model: training, search, and all steps of the pipeline."""

from mpcvit.cli.making import pipeline, search, training

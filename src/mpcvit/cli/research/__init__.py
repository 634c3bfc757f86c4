"""Commands that measure and compare: experiments, prices, and the report."""

from mpcvit.cli.research import experiment, prices, report

"""Lowering: a trained checkpoint becomes a program of few exchanges."""

ERROR_BUDGET = 0.02  # of the logits' errors, root mean square, in parts of their spread

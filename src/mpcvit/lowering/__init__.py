"""Lowering: a trained checkpoint becomes a program of few exchanges."""

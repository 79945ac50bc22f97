"""Weights: versions of named tensors, and the same versions as files."""

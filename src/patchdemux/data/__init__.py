"""Datasets: images with multi-label targets."""

"""Distributions of remaining response lengths: scenarios, survival curves, forecasts of running responses."""

"""Figures outside a notebook: HTML pages, images, PDF in print style, tables of their data."""

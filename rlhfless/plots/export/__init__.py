"""Export of figures: HTML pages, images, PDF in print style, and tables of their data."""

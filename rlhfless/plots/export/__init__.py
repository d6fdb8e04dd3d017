"""Export of figures and tables: HTML pages, images, PDF in print style, csv."""

"""The report of a trace or log: its computed findings, its sections, the HTML page, the notebook and the IPython magic."""

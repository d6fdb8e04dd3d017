"""The report of a trace or log: its sections, the study behind them, page, notebook and IPython magic."""

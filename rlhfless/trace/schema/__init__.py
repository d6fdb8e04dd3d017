"""The schema of a trace: tables, column types, validation."""

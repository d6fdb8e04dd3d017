"""Runs a step on the virtual clock: emulated actors, migrations, measured iteration times."""

"""Reads what frameworks print to the console while they train.

``lines.py`` turns bytes into lines, ``grammars.py`` lists the frameworks, each with a file of its own, and ``console.py`` reads
a file with them. The names of a framework's numbers are in ``importers/names.py``.
"""

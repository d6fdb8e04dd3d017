"""In place of the package of this name, whose import builds a grammar of names of resources: seconds of each process.

jsonschema imports it where it is installed (JupyterLab brings it), as every kernel and every server of Jupyter does. It does
without, and then does not check such names, which no schema here has.
"""

raise ImportError("the tests do without the grammar of names of resources")

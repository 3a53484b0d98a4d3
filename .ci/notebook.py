"""Runs a notebook from its first cell to its last, in a fresh kernel: python .ci/notebook.py FILE"""

import sys

import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=300).execute()  # raises an error if a cell does
print(f"{sys.argv[1]}: {sum(cell.cell_type == 'code' for cell in notebook.cells)} cells ran")

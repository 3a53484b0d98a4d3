"""Refuses ``python setup.py install``. pip builds the package, from pyproject.toml and CMakeLists.txt."""

raise SystemExit("fastagg is built by pip: pip install .")

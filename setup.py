"""For who types ``python setup.py install``: the package is built by pip, from pyproject.toml and CMakeLists.txt."""

raise SystemExit("fastagg is built by pip: pip install .")

"""CMake and ninja build the extension; setuptools packages it (metadata is in pyproject.toml)."""

from setuptools import setup

setup(cmake_source_dir=".")

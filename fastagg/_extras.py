"""Checks that optional packages are installed. Each belongs to an extra of fastagg, as listed in pyproject.toml.

The server needs only torch and numpy. For example the command line, the simulator and the service need more packages.
"""

from __future__ import annotations

from importlib.util import find_spec

from fastagg.errors import MissingDependency

# The names under which the packages of each extra are imported.
CLI = ("typer", "rich")
METRICS = ("prometheus_client",)
SERVE = (*CLI, "starlette", "uvicorn", "h11", "prometheus_client", "safetensors")
SIM = (*CLI, "matplotlib", "pydantic", "tomli_w", "sklearn", "scipy")
RAY = ("ray",)
PRIVACY = ("dp_accounting",)


def require(what: str, extra: str, modules: tuple[str, ...]) -> None:
    """Check that all ``modules`` are installed, without importing them.

    Raises:
        MissingDependency: a module is not installed. The message names the missing modules, the feature that needs
            them (``what``) and the command that installs them (``extra``).
    """
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        absent = f"{', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed"
        raise MissingDependency(f'{what} needs {absent}: pip install "fastagg[{extra}]"')

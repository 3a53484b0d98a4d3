"""Optional packages. Each belongs to an extra, and the error about a missing package names this extra.

The core needs torch and numpy. The command line and the simulator need what pyproject.toml lists under their extras.
"""

from __future__ import annotations

from importlib.util import find_spec

from fastagg.errors import MissingDependency

# The modules that each extra installs, as they are imported.
CLI = ("typer", "rich")
METRICS = ("prometheus_client",)
SERVE = (*CLI, "starlette", "uvicorn", "h11", "prometheus_client", "safetensors")
SIM = (*CLI, "matplotlib", "pydantic", "tomli_w", "sklearn", "scipy")
RAY = ("ray",)
PRIVACY = ("dp_accounting",)


def require(what: str, extra: str, modules: tuple[str, ...]) -> None:
    """Check that all ``modules`` are installed, without importing them.

    Raises:
        MissingDependency: one is not installed. The message names it, the feature that needs it (``what``) and how to
            install it.
    """
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        absent = f"{', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed"
        raise MissingDependency(f'{what} needs {absent}: pip install "fastagg[{extra}]"')

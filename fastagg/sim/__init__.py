"""The simulator: clients, delays and local training around a ``fastagg.Server``, all from one seed.

Rooms, each with one job:

    config         a run as TOML           recipes/      the runs that come with the package
    data/          who holds which samples  partition     Dirichlet label split
    models         small networks           client        local training
    clock          virtual time             delays        how long a client takes
    version_delay  delays given in versions participation who trains next
    schedule       which update arrives     run           the loop
    metrics        what is recorded         output        the run's folder
    plots, report  pictures and tables      demo          ``fastagg demo``

Nothing below ``fastagg.sim`` (server, ops) imports it. Importing this package imports neither torch nor
scikit-learn.
"""

from fastagg import _extras

_extras.require("the simulator", "sim", _extras.SIM)

"""All public names, in one place. The package imports this module when a public name is first used.

From a module with ``__all__``, all names in this list are imported with ``*``. Other names are imported ``as``
themselves, because type checkers then count the names as public.
"""

from fastagg import clients as clients
from fastagg import ops as ops
from fastagg import presets as presets
from fastagg import registry as registry
from fastagg._build import build_info as build_info
from fastagg._build import get_num_threads as get_num_threads
from fastagg._build import set_isa as set_isa
from fastagg._build import set_num_threads as set_num_threads
from fastagg.distill import Distillation as Distillation
from fastagg.durable.audit import audit as audit
from fastagg.durable.opening import open as open
from fastagg.encoding import *  # noqa: F403
from fastagg.errors import *  # noqa: F403
from fastagg.leaves import Leaf as Leaf
from fastagg.model import Layout as Layout
from fastagg.model.parts import parts as parts
from fastagg.presets import *  # noqa: F403
from fastagg.registry import register as register
from fastagg.rules.directions import *  # noqa: F403
from fastagg.rules.optimizers import *  # noqa: F403
from fastagg.rules.privacy import *  # noqa: F403
from fastagg.rules.staleness import *  # noqa: F403
from fastagg.server.answers import Answer as Answer
from fastagg.server.dispatch import Dispatch as Dispatch
from fastagg.server.dispatch import Partial as Partial
from fastagg.server.dispatch import Receipt as Receipt
from fastagg.server.loading import load as load
from fastagg.server.server import Server as Server
from fastagg.server.settings import ServerSettings as ServerSettings
from fastagg.server.watching import watch as watch
from fastagg.storage.cache import ClientCache as ClientCache

__version__ = build_info()["version"]

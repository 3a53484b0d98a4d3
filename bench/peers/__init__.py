"""Other people's ways to do what fastagg does, each in the best form we know: written here, not imported.

``ADAPTIVE`` holds candidates for a whole AMSGrad or Adam step, ``UPDATES`` those for buffering, applying and flushing,
``CACHED`` those for client caches, staleness norms and mixing; ``plain_loop`` the C++ loop of any of them.
"""

from peers.adaptive import adaptive
from peers.cached import CACHED
from peers.plain import plain_loop
from peers.updates import UPDATES

__all__ = ["CACHED", "UPDATES", "adaptive", "plain_loop"]

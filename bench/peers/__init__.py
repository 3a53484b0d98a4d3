"""Other people's ways to do what fastagg does, each in the best form we know: written here, not imported.

``ADAPTIVE`` holds candidates for a whole AMSGrad or Adam step, ``UPDATES`` those for buffering, applying and flushing,
``CACHED`` those for client caches, staleness norms and mixing.
"""

from peers.adaptive import adaptive
from peers.cached import CACHED
from peers.updates import UPDATES

__all__ = ["CACHED", "UPDATES", "adaptive"]

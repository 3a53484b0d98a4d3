"""The client's side: what a client stores or adds to its local training, callbacks for frameworks that train, and a
client of ``fastagg serve``."""

from fastagg.clients.callbacks import lightning_callback, trainer_callback
from fastagg.clients.http import HttpClient
from fastagg.clients.rules import DriftCorrection, GradientDifference, add_proximal_gradient_

__all__ = [
    "DriftCorrection", "GradientDifference", "HttpClient", "add_proximal_gradient_", "lightning_callback",
    "trainer_callback",
]  # fmt: skip

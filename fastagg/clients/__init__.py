"""Code for clients: state and corrections for local training, a callback for Hugging Face's Trainer, and a client of
``fastagg serve``. Users' client programs call this package."""

from fastagg.clients.callbacks import trainer_callback
from fastagg.clients.http import HttpClient
from fastagg.clients.rules import DriftCorrection, GradientDifference, add_proximal_gradient_

__all__ = [
    "DriftCorrection", "GradientDifference", "HttpClient", "add_proximal_gradient_", "trainer_callback",
]  # fmt: skip

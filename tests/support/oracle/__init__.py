"""Independent oracle of every server rule: NumPy float64, written from the papers, no code of the package.

Slow on purpose: means are recomputed from all rows, every version ever sent is kept, active sets are rebuilt
on every arrival, so that each rule can be compared with its pseudo-code by eye. The map:

core          the loop that every rule shares (dispatch, delay, clipping, sample weights, model buffers)
optimizers    what the server does with a direction (sgd, momentum, adam, amsgrad, yogi, adagrad)
policies      what the delay does (constant, hinge, polynomial, delay-adaptive, euclidean)
buffered      FedBuff, FADAS, CA2FL, FedAC
immediate     ASGD, delay-adaptive ASGD, FedAsync, AsyncFedED
cached        ACE (direct and with client caches), ACED
distilled     FedEcho
outer         DiLoCo, asynchronous, corrected (HeLoCo) and decoupled; Ringmaster ASGD; CGAD's weights
synchronous   FedAvg, FedAvgM, FedAdam, FedYogi, FedAdagrad, FedAMS
"""

from .buffered import CA2FL, FADAS, Buffer, Calibrated, CosineBuffer, FedAC, FedACOptimizer, FedBuff, Robust
from .cached import ACE, ACED, ACEClientCache, ActiveSet, AllClients, ClientGradients, Differences
from .core import Arrival, Composed, Direction, Receipt, Vector
from .distilled import FedEcho, TanhNetwork, loss_and_gradient, softmax
from .immediate import ASGD, AsyncFedED, DelayAdaptiveASGD, FedAsync, Single, StaleModel
from .optimizers import SGD, Adagrad, Adam, AMSGrad, DelayedNesterov, Momentum, Nesterov, Optimizer, Yogi
from .outer import Aligned, AsyncDiLoCo, CosineGate, Cutoff, DecoupledDiLoCo, DiLoCo, HeLoCo, RingmasterASGD
from .policies import Constant, DelayAdaptive, Euclidean, Hinge, Policy, Polynomial, StaleStep
from .synchronous import (
    Cohort,
    FedAdagrad,
    FedAdam,
    FedAMS,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedTrimmedAvg,
    FedYogi,
    fedprox_gradient,
)

__all__ = [
    "ACE",
    "ACED",
    "ASGD",
    "CA2FL",
    "FADAS",
    "SGD",
    "ACEClientCache",
    "AMSGrad",
    "ActiveSet",
    "Adagrad",
    "Adam",
    "Aligned",
    "AllClients",
    "Arrival",
    "AsyncDiLoCo",
    "AsyncFedED",
    "Buffer",
    "Calibrated",
    "ClientGradients",
    "Cohort",
    "Composed",
    "Constant",
    "CosineBuffer",
    "CosineGate",
    "Cutoff",
    "DecoupledDiLoCo",
    "DelayAdaptive",
    "DelayAdaptiveASGD",
    "DelayedNesterov",
    "DiLoCo",
    "Differences",
    "Direction",
    "Euclidean",
    "FedAC",
    "FedACOptimizer",
    "FedAMS",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgM",
    "FedBuff",
    "FedEcho",
    "FedMedian",
    "FedTrimmedAvg",
    "FedYogi",
    "HeLoCo",
    "Hinge",
    "Momentum",
    "Nesterov",
    "Optimizer",
    "Policy",
    "Polynomial",
    "Receipt",
    "RingmasterASGD",
    "Robust",
    "Single",
    "StaleModel",
    "StaleStep",
    "TanhNetwork",
    "Vector",
    "Yogi",
    "fedprox_gradient",
    "loss_and_gradient",
    "softmax",
]

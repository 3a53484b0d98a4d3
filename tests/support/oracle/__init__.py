"""Independent oracle of every server rule: NumPy float64, written from the papers, no code of the package.

Slow on purpose: means are recomputed from all rows, every version ever sent is kept, active sets are rebuilt
on every arrival, so that each rule can be compared with its pseudo-code by eye. The map:

core          the loop that every rule shares (dispatch, delay, clipping, sample weights, model buffers)
optimizers    what the server does with a direction (sgd, momentum, adam, amsgrad, yogi, adagrad)
policies      what the delay does (constant, hinge, polynomial, delay-adaptive, euclidean)
buffered      FedBuff, FADAS, CA2FL, FedAC
immediate     ASGD, delay-adaptive ASGD, FedAsync, AsyncFedED
cached        ACE, ACED
distilled     FedEcho
outer         DiLoCo, asynchronous, corrected (HeLoCo) and decoupled; Ringmaster ASGD; CGAD's weights
synchronous   FedAvg, FedAvgM, FedAdam, FedYogi, FedAdagrad, FedAMS
"""

# ruff: noqa: F401  # everything is the oracle's own name

from .buffered import CA2FL, FADAS, Buffer, Calibrated, CosineBuffer, FedAC, FedACOptimizer, FedBuff, Robust
from .cached import ACE, ACED, ActiveSet, AllClients
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

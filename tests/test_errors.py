"""What is refused: a line for each. What is typed, the error, and parts of what it says; nothing changes meanwhile.

A part that begins with ^ begins the message. Tables of their own have the arrays of updates (server/test_bad_input.py),
the ops (ops/test_refusals.py), files (fuzz/test_edited.py, server/test_hostile_files.py) and recipes
(sim/test_config.py); what cannot be drawn into a line stands beside what it is about.
"""

import math
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from support.liars import fake, freed
from support.models import Residual, same
from support.stderr import said as lines_of
from torch import nn

import fastagg
from fastagg import registry
from fastagg.clients.callbacks import _Periodic
from fastagg.errors import (
    Busy,
    CheckpointError,
    ConfigError,
    DataError,
    DTypeMismatch,
    EncodingError,
    FastaggError,
    NonFiniteUpdate,
    OtherClient,
    ShapeMismatch,
    StaleIncarnation,
    UnknownClient,
    UnknownVersion,
    UpdateTooLarge,
)
from fastagg.rules.directions.buffer import Cohort

Row = tuple[str, tuple[type[Exception], ...], tuple[str, ...]]
TABLE = Path(__file__).parents[1] / "reproduction" / "cifar8-quick.toml"  # an installed package finds it by its path
MISTAKE = (FastaggError, AttributeError)

# What the user types; then three parts of the message: the argument, what came, and what to do about it.
MISTAKES: list[tuple[str, str, str, str]] = [
    # names
    ("fastagg.FedBuf(model)", "fastagg", "'FedBuf'", "did you mean 'FedBuff'?"),
    ("fastagg.fadas(model)", "fastagg", "'fadas'", "did you mean 'FADAS'?"),
    ("fastagg.Serve(model)", "fastagg", "'Serve'", "did you mean 'Server'?"),
    ("fastagg.strategy", "fastagg", "'strategy'", "dir(fastagg)"),
    ("server.aggregate([flat])", "Server", "'aggregate'", "did you mean 'receive'?"),
    ("server.params", "Server", "'params'", "did you mean 'parameters'?"),
    ("server.recieve(0, flat)", "Server", "'recieve'", "did you mean 'receive'?"),
    ("server.num_client", "Server", "'num_client'", "did you mean 'num_clients'?"),
    # models
    ("fastagg.FedBuff(None)", "params", "got None", "give the model itself: fastagg.FedBuff(model)"),
    ("fastagg.FedBuff('model.pt')", "params", "got 'model.pt'", "give the model itself"),
    ("fastagg.FedBuff(model.parameters())", "params", "got <generator", "give the model itself"),
    ("fastagg.FedBuff(nn.Linear)", "params", "got the class Linear", "give the model itself"),
    ("fastagg.FedBuff(nn.ReLU())", "params", "got a model (ReLU)", "a model with parameters that train"),
    ("fastagg.FedBuff(model.requires_grad_(False))", "params", "got a model (Sequential)", "set requires_grad"),
    ("fastagg.FedBuff({})", "params", "got {}", "a model with parameters that train"),
    ("fastagg.FedBuff(torch.zeros(3, 4))", "params", "got a float32 array of shape [3, 4]", "1-D array"),
    ("fastagg.FedBuff(torch.arange(5))", "params", "got torch.int64", ".float()"),
    ("fastagg.FedBuff([1.0, 2.0])", "params '0'", "got float", "convert it with torch.tensor"),
    ("fastagg.FedBuff({'model': model.state_dict()})", "params 'model'", "got OrderedDict", "give the mapping in it"),
    ("fastagg.FedBuff({'w': torch.eye(3).to_sparse()})", "params 'w'", "sparse_coo", ".to_dense()"),
    ("fastagg.FedBuff({'w': torch.tensor([float('nan')])})", "params", "holds NaN", "in 'w'"),
    ("fastagg.FedBuff({1: flat})", "params", "got 1", "fastagg.FedBuff(list(params.values()))"),
    ("fastagg.FedBuff(torch.zeros(3, device='meta'))", "params", "(meta)", "model.to_empty(device='cpu')"),
    ("fastagg.Leaf(3)", "params", "got 3", "give the model itself"),
    # settings
    ("fastagg.FedBuff()", "'params'", "got no such argument", "write fastagg.FedBuff(params)"),
    ("fastagg.FedBuff(model, 0.1)", "without a name", "got 2", "write fastagg.FedBuff(params, lr=0.1)"),
    ("fastagg.ASGD(model)", "'lr'", "got no such argument", "write fastagg.ASGD(params, lr=...)"),
    ("fastagg.ACE(model, lr=0.1)", "'num_clients'", "got no such argument", "num_clients=...)"),
    ("fastagg.FedBuff(model, learning_rate=0.1)", "FedBuff", "'learning_rate'", "did you mean 'lr'?"),
    ("fastagg.FedBuff(model, bufer_size=3)", "FedBuff", "'bufer_size'", "did you mean 'buffer_size'?"),
    ("fastagg.FedBuff(model, buffer=3)", "FedBuff", "'buffer'", "did you mean 'buffer_size'?"),
    ("fastagg.FADAS(model, threshold=3)", "FADAS", "'threshold'", "did you mean 'delay_threshold'?"),
    ("fastagg.FADAS(model, staleness=fastagg.Hinge())", "FADAS", "'staleness'", "it belongs to Server; write"),
    ("fastagg.FedBuff(model, eps_root=1.0)", "FedBuff", "'eps_root'", "Adam"),
    ("fastagg.ASGD(model, lr=0.1, weight_decay=0.1)", "ASGD", "'weight_decay'", "SGD"),
    ("fastagg.FedAsync(model, lr=0.1)", "FedAsync", "'lr'", "did you mean 'alpha'?"),
    ("fastagg.SGD(learning_rate=1)", "SGD", "'learning_rate'", "did you mean 'lr'?"),
    ("fastagg.Buffer(buffer_size=5)", "Buffer", "'buffer_size'", "did you mean 'size'?"),
    ("fastagg.FedBuff(model, lr='0.1')", "lr", "got '0.1'", "write 0.1 without quotes"),
    ("fastagg.FedBuff(model, lr=torch.tensor(0.1))", "lr", "got tensor(0.1000)", "write float(lr)"),
    ("fastagg.FedBuff(model, buffer_size=np.int64(5))", "buffer_size", "got np.int64(5)", "write int(buffer_size)"),
    ("fastagg.FedBuff(model, lr=-1)", "lr", "got -1", ">= 0"),
    ("fastagg.FedBuff(model, buffer_size=0)", "buffer_size", "got 0", "a whole number >= 1"),
    ("fastagg.FedBuff(model, device='gpu')", "device", "got 'gpu'", "did you mean 'cuda'?"),
    ("fastagg.FedBuff(model, device='mps')", "device", "'mps'", "use device='cpu'"),
    ("fastagg.FedBuff(model, weighting='sample')", "weighting", "got 'sample'", "did you mean 'samples'?"),
    ("fastagg.FedBuff(model, lease='1h')", "lease", "got '1h'", "a finite float32 number > 0"),
    ("fastagg.FedBuff(model, seed=-1)", "seed", "got -1", "a whole number in 0.."),
    ("fastagg.FedBuff(model, buffer=10)", "buffer", "unknown setting", "did you mean 'buffer_size'?"),
    ("fastagg.FADAS(model, betas=0.9)", "betas", "got 0.9", "two numbers"),
    ("fastagg.FADAS(model, delay_threshold=-1)", "delay_threshold", "got -1", ">= 0"),
    ("fastagg.FADAS(model, delay_rule='scald')", "delay_rule", "got 'scald'", "did you mean 'scaled'?"),
    ("fastagg.FedAsync(model, policy='constant', a=1)", "a:", "got 1", "leave it out"),
    ("fastagg.ACE(model, lr=1, num_clients=9, cache='fp8')", "cache", "got 'fp8'", "one of 'fp32', 'bf16', 'int8'"),
    ("fastagg.ACE(torch.zeros(10**7), lr=1, num_clients=10**4)", "fp32 cache", "10000 updates", "use a smaller format"),
    ("fastagg.Server(model, optimizer='adam')", "optimizer", "got 'adam'", "write optimizer=fastagg.Adam(...)"),
    ("fastagg.Server(model, fastagg.Buffer)", "direction", "got the class Buffer", "direction=fastagg.Buffer(...)"),
    ("fastagg.Server(model, torch.optim.SGD([flat], lr=1))", "direction", "got SGD", "fastagg.Single(...)"),
    ("fastagg.Server(model, fastagg.AllClients(5), num_clients=6)", "num_clients", "got 6", "leave it out"),
    ("fastagg.FedEcho(model, num_clients=3, distill=None)", "distill", "got None", "distill=fastagg.Distillation"),
    ("fastagg.set_num_threads(0)", "set_num_threads", "got 0", "in 1..4096"),
    # tasks and answers
    ("server.receive_model(0, trained)", "task", "got 0", "task = server.dispatch(client)"),
    ("server.receive_model(trained, task)", "task", "got {'0.bias': a float32 array", "server.dispatch(client)"),
    ("fastagg.Answer.to(trained, task)", "task", "got {'0.bias': a float32 array", "server.dispatch(client)"),
    ("server.receive_model(task, None)", "trained model", "got NoneType", "a mapping from names to arrays"),
    ("server.receive_model(old_task, trained)", "client 0", "lost in a restart", "dispatch a new task"),
    ("server.receive(0, flat, incarnation=4)", "incarnation 4", "restarted, or by another", "server.dispatch(0)"),
    ("server.receive(0, model)", "update", "got a model (Sequential)", "server.receive_model(task, model)"),
    ("server.receive(0, None)", "update", "got NoneType", "a torch tensor, a NumPy array"),
    ("server.receive(0, flat.double())", "update", "got torch.float64", ".float()"),
    ("server.receive(0, flat.double().numpy())", "update", "got a float64 array", '.astype("float32")'),
    ("server.receive(0, {k: v.double() for k, v in trained.items()})", "'0.weight'", "float64", ".float()"),
    ("server.receive(0, flat.tolist())", "update", "got 58", "torch.tensor"),
    ("server.receive(0, flat[:5])", "update", "got [5]", "expected shape [58]"),
    ("server.receive(0, flat * float('nan'))", "update", "NaN or infinity", "lower the client's learning rate"),
    ("server.receive(0, {'module.' + k: v for k, v in trained.items()})", "update", "unknown 'module.", "remove 'mod"),
    ("server.receive(7, flat)", "client 7", "was never sent a model", "call server.dispatch(7) first"),
    ("server.receive(0.0, flat)", "client", "0.0", "expected an int or a str"),
    ("server.receive(0, flat, 5)", "client 0", "version 5 came", "it owes versions [0]"),
    ("server.receive(1, flat)", "client 1", "has answered everything", "dispatch a new task"),
    ("server.receive(0, flat, '0')", "version", "got '0'", "a whole number"),
    ("server.receive(0, flat, 0, -1)", "num_samples", "got -1", ">= 0"),
    ("server.receive(0, flat, kind='gradient')", "kind", "got one of kind 'gradient'", "send a delta"),
    ("server.receive(0, flat, control=flat)", "control", "got a control", "leave it out"),
    ("weighted.receive(0, flat)", "num_samples", "got None", "num_samples=len(data)"),
    ("ace.dispatch(10)", "client 10", "expected 0..9", "num_clients"),
    ("ace.receive_model(ace.dispatch(1), trained)", "kind", "got one of kind 'delta'", "send a gradient"),
    ("server.receive_many([task])", "receive_many", "got Dispatch(", "fastagg.Answer.to(task, trained)"),
    ("server.receive_partial(0, flat)", "partial", "got a float32 array", "what a fastagg.Leaf's take() returned"),
    ("server.receive(task, flat)", "client", "got a task", "write task.client"),
    ("server.receive_many(None)", "receive_many", "got None", "give a list of fastagg.Answer("),
    # files
    ("fastagg.load('junk.pt')", "junk.pt", "not a whole checkpoint", "a file that server.save(path) wrote"),
    ("fastagg.load('model.pt')", "model.pt", "not a fastagg checkpoint", "fastagg.FedBuff(torch.load(path))"),
    ("fastagg.load('nothing.pt')", "nothing.pt", "no such checkpoint", "server.save('nothing.pt')"),
    ("fastagg.load('folder')", "folder", "it is a folder", "fastagg.open('folder', make)"),
    ("fastagg.load(None)", "path", "got None", "a str or a pathlib.Path"),
    ("server.save('nowhere/server.pt')", "server.pt", "could not be written", "create the folder"),
    ("server.load_state_dict(model.state_dict())", "state", "got {'0.bias'", "fastagg.load(path)"),
    ("fastagg.open('a', model)", "make", "got a model (Sequential)", "open(path, lambda: fastagg.FedBuff(model))"),
    ("fastagg.open('b', lambda: None)", "make", "got None", "lambda: fastagg.FedBuff(model)"),
    ("fastagg.open('junk.pt', lambda: server)", "junk.pt", "got a file", "fastagg.load(path)"),
    ("server.save('folder')", "folder", "no regular file is there", "give another path"),
    # the command line and recipes
    ("$ run fadas", "recipe", "'fadas'", "fadas-digits-large"),
    ("$ run fedbuf-digits-large", "recipe", "'fedbuf-digits-large'", "did you mean 'fedbuff-digits-large'?"),
    ("$ run fadas-digits-mild --set lr=0.1", "unknown key lr", "got 0.1", "did you mean client.lr or algorithm.lr"),
    ("$ run fadas-digits-mild --set clients=10", "unknown key clients", "got 10", "did you mean data.clients?"),
    ("$ run fadas-digits-mild --set client.lrr=1", "unknown key", "client.lrr", "did you mean 'lr'?"),
    ("$ run fadas-digits-mild --set algorithm.name=FedBuf", "algorithm", "'FedBuf'", "did you mean 'FedBuff'?"),
    ("$ run fadas-digits-mild --set data.name=digit", "data", "'digit'", "did you mean 'digits'?"),
    ("$ run fadas-digits-mild --set model.name=cn", "model.name", "got 'cn'", "did you mean 'cnn'?"),
    ("$ run fadas-digits-mild --set run.device=gpu", "run.device", "'gpu'", "did you mean 'cuda'?"),
    ("$ run fadas-digits-mild --set run.target=90", "run.target", "got 90", "less than or equal to 1"),
    ("$ run fadas-digits-mild --set client.lr", "key=value", "got 'client.lr'", "such as client.lr=0.1"),
    ("$ run fadas-digits-mild --lr 0.1", "option", "--lr", "--set client.lr=0.1"),
    ("$ run fadas-digits-mild --out junk.pt", "junk.pt", "got a file", "--out takes another one"),
    ("$ run folder", "recipe", "'folder'", "fastagg run --resume folder"),
    (f"$ compare {TABLE} --data-dir nowhere", "data.dir", "the data folder nowhere", "does not exist"),
    ("$ rum fadas-digits-mild", "command", "'rum'", "Did you mean 'run'?"),
    ("$ compare fadas-digits-mild --baseline FedAvg", "baseline", "'FedAvg'", "known: fadas-digits-mild"),
    ("$ run none.toml", "recipe none.toml", "No such file", "`fastagg recipes` lists those in the package"),
    ("$ run fadas-digits-mild --resume --replace", "--resume", "--replace", "give one of them"),
    ("$ doctor --path folder", "--path", "No such option", "without a name: fastagg doctor FOLDER|FILE"),
    ("$ doctor nowhere", "nowhere", "there is nothing", "a file of server.save(path)"),
    ("sim.run('fadas-digits-mild', lr=1)", "unknown key lr", "got 1", "did you mean client.lr or algorithm.lr"),
    ("sim.run('fadas-digits-mild', ['client.lr=1'])", "changes", "got ['client.lr=1']", "{'client.lr': 0.1}"),
    ("sim.run('fadas-digits-mild', out=3)", "out", "got 3", "a str or a pathlib.Path"),
    ("sim.run(3)", "config", "got 3", "a recipe's name"),
    ("sim.run('fadas-digits-mild', seeds=3)", "seeds", "unknown key", "compare RECIPE --seeds 3` runs several"),
    ("sim.run('fadas-digits-mild', seed='3')", "seed", "got '3'", "integer"),
    ("sim.run('fadas-digits-mild', model=model)", "model", "got a Sequential", "lambda shape, classes: Net()"),
    ("sim.run('fadas-digits-mild', model='mlp')", "model", "got a str", "a function of (shape, classes)"),
    ("sim.run('fadas-digits-mild', model=lambda shape: model)", "model", "does not take", "too many positional"),
    ("sim.run('fadas-digits-mild', own=own.UserFunctions(train=lambda model: 1))", "own.train", "not take", "many"),
    ("sim.run('fadas-digits-mild', own=own.UserFunctions(change=3))", "own.change", "got a int", "expected a function"),
    ("sim.run('fadas-digits-mild', data=federated(2))", "concurrency", "is 20, more", "the data's 2 clients"),
    ("federated(2, torch.utils.data.TensorDataset)", "client 0", "a TensorDataset", "expected Samples(x, y)"),
    ("sim.run('fadas-digits-mild', {'algorithm.name': 'FedBuff'})", "algorithm", "FedBuff has no such", "one of FADAS"),
    ("sim.run('fedavg-digits-large', {'algorithm.name': 'FedProx'})", "FedProx", "client.mu", "it is FedAvg"),
    ("$ run fadas-digits-mild --seeds 3", "--seeds", "No such option", "an option of `fastagg compare`"),
    # what all integrations share
    ("integrations.preset('fedbuf')", "algorithm", "got 'fedbuf'", "did you mean 'FedBuff'?"),
    ("integrations.goals.Settings(stop={'targt': 0.9})", "Stop", "'targt'", "did you mean 'target'?"),
    ("integrations.goals.Settings(stop=0.9)", "stop", "got 0.9", "write Stop(...)"),
    ("trackers.made({'tensorbord': 'runs'})", "trackers", "'tensorbord'", "did you mean 'tensorboard'?"),
]  # fmt: skip

# A setting's value that cannot be: what takes it, its name, and such values. The message begins with the name, and has
# the value.
VALUES: list[tuple[str, str, tuple[Any, ...]]] = [
    ("fastagg.FADAS(x, {})", "lr", (-1e-3, math.nan, "fast")),
    ("fastagg.FADAS(x, {})", "buffer_size", (0, 1.5, True)),
    ("fastagg.FADAS(x, {})", "betas", ((0.9,),)),
    ("fastagg.FADAS(x, {})", "eps", (0.0, 1e-60)),
    ("fastagg.FADAS(x, {})", "delay_rule", ("other", "drop")),  # the second is another rule's
    ("fastagg.FADAS(x, {})", "bias_correction", ("no", 1.0)),
    ("fastagg.FADAS(x, {})", "decoupled_weight_decay", ("no", 0)),
    ("fastagg.FedAsync(x, {})", "alpha", (0.0, 1.5)),
    ("fastagg.FedAsync(x, {})", "policy", ("other",)),
    ("fastagg.FedAsync(x, policy='hinge', {})", "a", (0.0,)),
    ("fastagg.FedAsync(x, policy='constant', {})", "a", (1.0,)),
    ("fastagg.FedAsync(x, {})", "normalize", (-1.0,)),
    ("fastagg.FedBuff(x, {})", "clip_norm", (0,)),
    ("fastagg.FedBuff(x, {})", "buffers", ("other",)),
    ("fastagg.FedBuff(x, {})", "num_clients", (0,)),
    ("fastagg.FedBuff(x, {})", "device", ("nowhere", "cuda:x", 3.5, 2**70)),
    ("fastagg.FedBuff(x, {})", "tied", (5, [1], [(1.5,)], "ab")),
    ("fastagg.FedBuff(x, {})", "max_samples", (0, 1e-45)),
    ("fastagg.FedBuff(x, {})", "model_dtype", ("bf17", "fp32", torch.bfloat16)),
    ("fastagg.FedBuff(x, {})", "fastest_steps", (0,)),
    ("fastagg.FedBuff(x, buffer_size=10, grace=1.0, {})", "at_least", (11,)),
    ("fastagg.FedBuff(x, buffer_size=10, at_least=3, {})", "grace", (-1.0,)),
    *(("fastagg.FedBuff(x, {})", name, (-1, "soon", math.nan, True))
      for name in ("lease", "max_delay", "max_open_per_client", "max_clients", "max_waiting")),
    ("fastagg.FedAvg(x, clients_per_round=2, {})", "deterministic", ("no", 1, None)),
    ("fastagg.ACE(x, lr=0.1, {})", "num_clients", (0, 10**12)),
    ("fastagg.ACE(x, lr=0.1, num_clients=2, {})", "cache", ("int3",)),
    ("fastagg.ACE(x, lr=0.1, num_clients=2, {})", "mode", ("clients",)),
    ("fastagg.ACE(x, lr=0.1, num_clients=2, mode='client', {})", "cache", ("int8",)),
    ("fastagg.ACED(x, lr=0.1, num_clients=2, {})", "max_delay", (-1,)),
    ("fastagg.AsyncFedED(x, eps=1.0, {})", "lam", (0.0,)),
    ("fastagg.AsyncFedED(x, lam=1.0, eps=1.0, {})", "local_steps", (0,)),
    ("fastagg.AsyncFedED(x, lam=1.0, eps=1.0, {})", "max_local_steps", (2**40,)),
    ("fastagg.DelayAdaptiveASGD(x, lr=0.1, delay_threshold=1, stale='lipschitz', {})", "lipschitz", (None,)),
    ("fastagg.SGD({})", "weight_decay", (-1.0,)),
    ("fastagg.Adam({})", "eps", (0.0,)),
    ("fastagg.Adam(eps_root=1e-30, {})", "eps", (0.0,)),
    ("fastagg.Yogi({})", "eps_root", (-1.0,)),
    ("fastagg.Adagrad({})", "initial", (-1.0,)),
    ("fastagg.Nesterov({})", "momentum", (1.0,)),
    ("fastagg.Nesterov({})", "dampening", (-0.1,)),
    ("fastagg.Nesterov(moments='fp32', {})", "look_ahead", ("no",)),
    ("fastagg.DelayedNesterov({})", "period", (0,)),
    ("fastagg.Buffer({})", "normalize", ("samples", 0)),
    ("fastagg.Robust('median', {})", "synchronous", ("no",)),
    ("fastagg.Aligned({})", "c_ok", (1.5,)),
    ("fastagg.Aligned({})", "rho", (0.0,)),
    ("fastagg.CosineGate({})", "cutoff", (0.0,)),
    ("fastagg.Cutoff({})", "delay", (0,)),
]  # fmt: skip
NO_IDS = ("2**64", "-(2**63) - 1", "10**700", "10**5000", "'é' * 257", "1.0", "nan", "None", "b'a'", "(1,)",
          "np.float32(1)", r"'\ud800'", "Worst()")  # fmt: skip
SINGLE_UPDATES = ("fastagg.ASGD(x, lr=0.1)", "fastagg.ACE(x, lr=0.1, num_clients=3)", "fastagg.FedAC(x, lr=0.1)",
                  "fastagg.FedAvg(x, clients_per_round=3, weighting='uniform', deterministic=True)",
                  "fastagg.Server(x, fastagg.Buffer(3), staleness=fastagg.Euclidean())")  # fmt: skip

REFUSALS: list[tuple[Any, ...]] = [
    # models
    *((f"fastagg.FedBuff({empty})", ShapeMismatch, "^params: expected a model with parameters that train", "requires")
      for empty in ("[]", "torch.zeros(0)", "[torch.zeros(0), torch.zeros(0, 3)]")),
    ("fastagg.FedBuff([torch.zeros(2, dtype=torch.complex64)])", DTypeMismatch, "complex64"),
    ("fastagg.FedBuff(np.array(['a']))", DTypeMismatch, "numbers"),
    ("fastagg.FedBuff([torch.tensor([1e300], dtype=torch.float64)])", NonFiniteUpdate, "'0'"),  # infinite in fp32
    ("freed(residual.head.bias); fastagg.FedBuff(residual)", DTypeMismatch, "^params 'head.bias': ", "was freed"),
    ("fastagg.FedBuff({'w': x, 'half': freed(torch.zeros(8).half()[::2])})", DTypeMismatch, "'half': ", "was freed"),
    ("fastagg.FedBuff([torch.zeros(2), fake(3)])", DTypeMismatch, "'1': ", "FakeTensor"),
    ("fastagg.FedBuff(np.ma.zeros(3))", DTypeMismatch, "masked"),
    ("fastagg.FedBuff(nn.Linear(2, 2, device='meta'))", DTypeMismatch, "'weight': ", "(meta)"),
    ("fastagg.FedBuff({'w': torch.tensor([1.0, -inf])})", NonFiniteUpdate, "'w'"),
    ("fastagg.FedBuff({'w': torch.eye(3) - torch.full((3, 3), inf).triu(1)})", NonFiniteUpdate, "'w'"),
    *((f"fastagg.FedBuff({model}, tied=[{pair}])", FastaggError, "tied") for model, pair in (
        ("{'a': x, 'b': x[:2].clone()}", "('a', 'z')"), ("{'a': x, 'b': x[:2].clone()}", "('a', 'b')"),
        ("nn.Linear(2, 2)", "('weight', 'bias')"), ("x", "(0, 0)"))),
    # models in parts
    ("fastagg.parts(torch.zeros(9), 2)", ConfigError, "has 1 tensors to give out, got 2 parts"),
    ("fastagg.parts([torch.zeros(2)] * 2, 2)", ConfigError, "has 1 tensors to give out, got 2 parts"),  # one memory
    ("fastagg.parts(nn.Linear(2, 2), 3)", ConfigError, "has 2 tensors to give out, got 3 parts"),
    ("fastagg.parts(nn.Linear(2, 2), 0)", ConfigError, "count: expected a whole number >= 1"),
    ("fastagg.parts(nn.Linear(2, 2).requires_grad_(False), 1)", ShapeMismatch, "parameters that train"),
    ("fastagg.FedBuff(part, clip_norm=1.0)", ConfigError, "clip_norm: it needs the norm of the whole", "by_part=True"),
    ("fastagg.AsyncFedED(part, lam=1.0, eps=1.0)", ConfigError, "Euclidean: it needs how far the", "by_part=True"),
    ("fastagg.FedAC(part, lr=1.0, num_clients=2)", ConfigError, "CosineBuffer: it needs the cosine", "by_part=True"),
    ("fastagg.Krum(part, clients_per_round=3)", ConfigError, "the distances between whole updates"),
    ("fastagg.FedBuff(part, tied=[('stem.0.weight', 'head.bias')])", ConfigError, "tied: ", "give it to fastagg.parts"),
    ("fastagg.FedBuff(fastagg.parts({'a.w': x, 'b.w': x + 1}, 2)[0], buffers={'a.*': 'mean'})", ConfigError,
     "buffers: ", "so give it to fastagg.parts"),
    ("fastagg.FedEcho(fastagg.parts(residual, 2, by_part=True)[0], num_clients=2, distill="
     "fastagg.Distillation(residual, torch.zeros(2, 1, 4, 4)))", ConfigError, "distill.model"),
    *((f"fastagg.parts(residual, 2).split({update})", ShapeMismatch)
      for update in ("x", "{'stem.0.weight': torch.ones(4, 1, 3, 3)}", "[torch.ones(2)]")),
    # settings that could be, but not together, or not there
    ("fastagg.Server(x, learning_rate=0.1)", ConfigError, "unknown setting 'learning_rate'; known: answers_per_step"),
    ("fastagg.Server(x, fastagg.Mixing(kind='gradient'))", ConfigError, "a gradient is no model"),
    ("fastagg.Server(x, fastagg.Differences(2), staleness=fastagg.Hinge())", ConfigError, "Differences takes no stale"),
    ("fastagg.Server(x, fastagg.Differences(2), clip_norm=1.0)", ConfigError, "Differences takes", "no clip_norm"),
    ("fastagg.Server(x, fastagg.Differences(2), weighting='samples')", ConfigError, "Differences", "no sample weights"),
    ("fastagg.FADAS(x, betas=(1.0, 0.9))", ConfigError, "betas[0]: expected", "got 1.0"),
    ("fastagg.CosineBuffer(normalize='weights')", ConfigError, "normalize: CosineBuffer divides by what"),
    ("fastagg.CosineBuffer(None)", ConfigError, "buffer_size"),
    ("fastagg.Server(x, fastagg.CosineBuffer(10, at_least=3, grace=1.0))", ConfigError, "full"),
    ("fastagg.FedBuff(x, buffer_size=10, at_least=3)", ConfigError, "grace: needed with at_least"),
    ("fastagg.FedBuff(x, buffer_size=10, grace=1.0)", ConfigError, "at_least"),
    ("fastagg.Server(x, Cohort(4, overflow='close'))", ConfigError, "overflow"),
    *((f"fastagg.{name}(x, deterministic=True)", ConfigError, "deterministic: it needs a synchronous rule")
      for name in ("FedBuff", "FADAS", "FedAsync")),
    ("fastagg.Nesterov(look_ahead=True, moments='8bit')", ConfigError, "moments: look_ahead"),
    ("fastagg.Server(x, fastagg.Aligned(), fastagg.SGD())", ConfigError, "optimizer: Aligned turns"),
    ("fastagg.Server(x, fastagg.Aligned(), fastagg.Momentum(moments='8bit'))", ConfigError, "optimizer: Aligned turns"),
    ("fastagg.Server(x, fastagg.Mixing(), fastagg.Nesterov(look_ahead=True))", ConfigError,
     "look_ahead: clients are sent another model"),
    ("fastagg.FedBuff(x).dispatch(0, speed=1.0)", ConfigError, "speed: ", "fastest_steps="),
    ("fastagg.FedBuff(x, fastest_steps=9).dispatch(0, speed=-1.0)", ConfigError, "speed: "),
    ("fastagg.set_isa('mmx')", ConfigError, "instruction set 'mmx' is not available here"),
    *((f"fastagg.{name}(x, {how}model_dtype='bf16')", ConfigError, "model_dtype: this rule compares")
      for name, how in (("FedAsync", ""), ("AsyncFedED", "lam=1.0, eps=1.0, "), ("FedAC", "lr=0.1, "))),
    ("fastagg.Server(x, optimizer=Own(), model_dtype='bf16')", ConfigError, "model_dtype: Own is a rule of its own"),
    ("fastagg.FedBuff({'b': largest_half}, model_dtype='bf16')", NonFiniteUpdate, "'b'"),  # infinite once rounded
    ("fastagg.FedBuff({'b': torch.tensor([3.4e38])}, model_dtype='bf16')", NonFiniteUpdate, "'b'"),
    # robust rules
    ("fastagg.Server(x, fastagg.Robust('median', 3), weighting='samples')", ConfigError, "could be a lie"),
    ("fastagg.Krum(x, clients_per_round=3, weighting='samples')", ConfigError, "unknown setting 'weighting'"),
    *((f"fastagg.Server(x, fastagg.Robust('median', 5), {more})", ConfigError, "num_clients: ", "never fill a step")
      for more in ("num_clients=4", "num_clients=2, answers_per_step=2")),
    ("fastagg.Robust('median', 0)", ConfigError, "^buffer_size", "0"),
    ("fastagg.Robust('median', 2000)", ConfigError, "^buffer_size", "2000"),
    ("fastagg.Robust('krum', 10, f=2, at_least=6, grace=1.0)", ConfigError, "krum needs 7..1024 updates, got 6"),
    ("fastagg.Robust('trimmed', 10, radius=2.0)", ConfigError, "radius: a setting of centered_clip, not of trimmed"),
    ("fastagg.Robust('median', 10, at_least=6)", ConfigError, "grace: needed with at_least"),
    ("fastagg.Robust('mode', 3)", ConfigError, "rule"),
    ("fastagg.Robust('median', 3, f=1)", ConfigError, "f: a setting of mean_around_median and krum"),
    ("fastagg.Robust('trimmed', 3, trim=0.5)", ConfigError, "trim"),
    ("fastagg.Robust('krum', 6, f=2)", ConfigError, "krum needs 7..1024 updates, got 6"),
    ("fastagg.Robust('multi_krum', 7, f=2, keep=8)", ConfigError, "updates"),
    ("fastagg.Robust('mean_around_median', 4, f=2)", ConfigError, "needs 5..1024 updates"),
    ("fastagg.Robust('centered_clip', 3, radius=0.0)", ConfigError, "radius"),
    ("fastagg.Robust('geometric_median', 3, iterations=0)", ConfigError, "iterations"),
    # privacy
    ("fastagg.FedBuff(x, privacy=gauss, staleness=fastagg.Polynomial(0.5))", ConfigError, "staleness: with privacy"),
    ("fastagg.FedBuff(x, privacy=gauss, weighting='samples')", ConfigError, "weighting: with privacy"),
    ("fastagg.FedBuff(x, privacy=gauss, clip_norm=1.0)", ConfigError, "clip_norm: privacy has its own"),
    ("fastagg.FedBuff(x, privacy=1.0)", ConfigError, "privacy: expected a fastagg.Gaussian"),
    ("fastagg.FedAvg(x, clients_per_round=2, privacy=gauss)", ConfigError, "weighting"),
    ("fastagg.CosineBuffer(2, privacy=gauss)", ConfigError, "keeps more of clients"),
    ("fastagg.FedBuff(nn.BatchNorm1d(4), privacy=gauss)", ConfigError, "buffers: clients' running"),
    ("fastagg.Server(x, fastagg.Buffer(3, privacy=gauss), Own())", ConfigError, "optimizer: Own has a step in Python"),
    ("fastagg.FedBuff(fastagg.parts(residual, 2, by_part=True)[0], privacy=gauss)", ConfigError, "privacy: every part"),
    ("fastagg.FedBuff(x, privacy={'noise': 1.0})", ConfigError, "Gaussian: unknown setting 'noise'; did you mean 'no"),
    ("fastagg.FedBuff(x, privacy={1: 1.0})", ConfigError, "Gaussian: expected settings by their names, got {1: 1.0}"),
    ("fastagg.FedBuff(x, privacy={'noise_multiplier': 1.0, 'clip_norm': {'norm': 1.0}})", ConfigError,
     "AdaptiveClip: unknown setting"),
    ("fastagg.FedBuff(x, privacy=fastagg.Gaussian(1.0, fastagg.AdaptiveClip()))", ConfigError, "count_noise: the"),
    ("fastagg.Gaussian(-1.0, 1.0)", ConfigError, "noise_multiplier"),
    ("fastagg.Gaussian(nan, 1.0)", ConfigError, "noise_multiplier"),
    ("fastagg.Gaussian(1.0, 0.0)", ConfigError, "clip_norm"),
    ("fastagg.Gaussian(1.0, 1.0, min_separation=0)", ConfigError, "min_separation"),
    ("fastagg.Gaussian(1.0, 1.0, max_participations=0)", ConfigError, "max_participations"),
    ("fastagg.Gaussian(1.0, 1.0, correlation=fastagg.BLT((0.5,), (0.9,)))", ConfigError, "max_participations: needed"),
    ("fastagg.Gaussian(1.0, fastagg.AdaptiveClip(), correlation=fastagg.BLT((0.5,), (0.9,)), max_participations=2)",
     ConfigError, "correlation: past noise"),
    ("fastagg.Gaussian(1.0, fastagg.AdaptiveClip(count_noise=1.0))", ConfigError, "count_noise"),
    ("fastagg.Gaussian(1.0, 1.0).epsilon(1, 0.0)", ConfigError, "delta"),
    ("fastagg.AdaptiveClip(1.0)", ConfigError, "quantile"),
    ("fastagg.BLT((0.5,), (1.0,))", ConfigError, "theta"),
    ("fastagg.BLT((0.5, 0.1), (0.9,))", ConfigError, "theta: expected one"),
    ("fastagg.BLT((0.5,), (0.1,))", ConfigError, "noise could grow"),
    ("fastagg.BLT((0.01,) * 9, (0.5,) * 9)", ConfigError, "omega: expected 1 to 8"),
    ("fastagg.FedBuff(x).privacy_spent(1e-5)", ConfigError, "no privacy"),
    ("private.receive_partial('ann', fastagg.Partial(x, 2, 2.0))", ConfigError, "is not clipped one by one"),
    ("private.receive('ann', x * nan)", NonFiniteUpdate),
    ("private.load_state_dict(small.state_dict())", CheckpointError, "without privacy"),
    # parts by name, and parts of one's own
    ("registry.part('direction', {'name': 'Buffer', 'sizes': 3})", ConfigError,
     "direction Buffer: unknown setting 'sizes'; did you mean 'size'"),
    ("registry.part('optimizer', {'name': 'Adam', 'learning_rate': 1.0})", ConfigError, "did you mean 'lr'"),
    ("registry.part('optimizer', {'name': 'SGD', 'colour': 1.0})", ConfigError, "setting 'colour'; known: ", "lr"),
    ("registry.part('direction', {'name': 'AllClients'})", ConfigError, "direction AllClients: ", "num_clients"),
    ("registry.part('staleness', {'name': 'Hinge', 'a': -1.0})", ConfigError, "a: expected"),
    ("registry.part('staleness', {'name': 3})", ConfigError, "staleness: expected the name of a part, got 3"),
    ("registry.part('staleness', {'name': 'a b'})", ConfigError, "expected the name of a part, got 'a b'"),
    ("registry.part('staleness', {})", ConfigError, "expected the name of a part, got None"),
    ("fastagg.register(int)", ConfigError, "derived from fastagg.Direction or fastagg.Optimizer or fastagg.Staleness"),
    ("fastagg.register(Own())", ConfigError, "expected a class"),
    ("fastagg.register('Own')", ConfigError, "expected a class", "got 'Own'"),
    ("class Bare(fastagg.Staleness): pass\nfastagg.register(Bare)", ConfigError, "Bare must be a dataclass"),
    # tasks, ids and offsets
    *((f"{server}.{call.format(client, server, own)}", UnknownClient, "client")
      for server, own in (("small", "'ann'"), ("numbered", "0")) for client in NO_IDS
      for call in ("dispatch({})", "receive({}, x)", "forget({})", "hand_on({1}.dispatch({2}), {0})")),
    *((f"{server}.dispatch({client})", UnknownClient, "client") for server, client in (
        ("small", "True"), ("numbered", "-1"), ("numbered", "5"), ("numbered", "'0'"))),
    *((f"small.{call.format(given)}", ConfigError, "task: expected")
      for given in ("'1'", "1.0", "object()", "[]", "torch.ones(2)")
      for call in ("receive('ann', x, task={})", "receive('ann', x, kind='delta', task={})",
                   "receiving('ann', task={})", "receive_partial('ann', fastagg.Partial(x, 1, 1.0), task={})")),
    *((f"small.{call.format(given)}", ConfigError, "offset: expected")
      for given in ("'1'", "1.0", "object()", "[]", "torch.ones(2)", "-1", "2**63")
      for call in ("receive('ann', x, offset={})", "receiving('ann', offset={})")),
    ("raise small.receive_many([('ann', x, None, None, '1')])[0]", ConfigError, "task: expected"),
    ("small.receive('ann', x, task=small.dispatch('ann'))", ConfigError, "write task.id"),
    *((f"small.receive('{client}', x, task={given})", StaleIncarnation)
      for given in ("-1", "0", "1", "2**63 - 1", "2**63", "2**200", "-(2**200)") for client in ("ann", "nobody")),
    ("small.receive('ann', x, 7, task=small.dispatch('ann').id)", UnknownVersion, "is of version 0"),
    *((f"small.expire({before})", ConfigError, "before") for before in ("-1", "1.5", "'now'")),
    ("full.dispatch('ann')", Busy, "'ann' has 2 tasks", "max_open_per_client"),
    ("full.dispatch('eve')", Busy, "'eve' is one more than the 2", "max_clients"),
    ("fastagg.FedAsync(x).dispatch(0, format='int8')", ConfigError, "format: this rule compares"),
    ("fastagg.FedAsync(x).dispatch(0, format='int4')", ConfigError, "format: expected one of"),
    ("fastagg.FedBuff({'w': largest_half}).dispatch(0, format='bf16')", UpdateTooLarge, "format: the model that is"),
    # a task's difference
    *((f"fastagg.FedBuff(residual).dispatch(0).delta({wrong})", error, *says) for wrong, error, *says in (
        ("torch.zeros(9)", ShapeMismatch, "mapping", "got Tensor"),  # never a silent empty update
        ("[torch.zeros(1)] * 3", ShapeMismatch, "arrays, got 3"),
        ("residual.state_dict() | {'head.bias': torch.zeros(4)}", ShapeMismatch, "'head.bias'", "[3]", "[4]"),
        ("residual.state_dict() | {'head.bias': torch.zeros(3, dtype=torch.complex64)}", DTypeMismatch, "'head.bias'"),
        ("{k: v for k, v in residual.state_dict().items() if k != 'head.bias'}", ShapeMismatch, "missing 'head.bias'"),
        ("nn.Linear(2, 2)", ShapeMismatch, "unknown 'weight', 'bias'"), ("'model'", ShapeMismatch, "str"),
        ("(freed(residual.head.bias), residual)[1]", DTypeMismatch, "trained model 'head.bias': ", "was freed"))),
    ("fastagg.FedBuff(torch.zeros(2)).dispatch(0).delta(torch.zeros(3))", ShapeMismatch, "[2]", "[3]"),
    ("fastagg.FedBuff([torch.zeros(2)]).dispatch(0).delta(torch.zeros(2))", ShapeMismatch, "a list of arrays"),
    # updates
    ("asgd.receive_model(asgd.dispatch(1), x)", ConfigError, "gradient"),
    ("bf16.receive(0, torch.full((5,), 200.0))", UpdateTooLarge),
    ("tokens.receive(0, x)", ConfigError, "num_samples: needed"),
    *((f"tokens.receive(0, x, num_samples={pair})", ConfigError)
      for pair in ("(1.0,)", "(1.0, 0)", "(-1.0, 2)", "(1.0, 2, 3)", "(nan, 1)")),
    ("weighted.receive(0, flat, num_samples=(1.0, 2))", ConfigError, 'belongs to weighting="tokens"'),
    *((f"{server}.receive(0, flat)", ConfigError, 'weighting="samples" and "tokens", got None')
      for server in ("weighted", "weighted_ace")),
    ("small.receive('ann', fastagg.Encoded.from_arrays(int8 | {'scales': 0 * int8['scales'] + 3e38}))",
     NonFiniteUpdate),
    ("small.receive('ann', fastagg.encode(torch.ones(5), 'sign', seed=0))", ShapeMismatch, "encoded one of 5"),
    ("fastagg.Encoded.from_arrays(int8 | {'scales': -int8['scales']})", EncodingError),
    *((f"sent({server}, 1).receive_partial(1, fastagg.Partial(x, 1, 1.0))", ConfigError, "that add updates up")
      for server in SINGLE_UPDATES),
    ("sent(fastagg.Krum(x, clients_per_round=3), 1).receive_partial(1, fastagg.Partial(x, 1, 1.0))", ConfigError,
     "this rule needs every single one"),
    *((f"small.receive_partial('ann', fastagg.Partial({partial}))", FastaggError, says) for partial, says in (
        ("x, 2**20 + 1, 2.0**20 + 1", "at most 1048576 at a time"), ("x, 0, 1.0", "updates"), ("x, 2, 3.0", "weight"),
        ("x, 2, nan", "weight"), ("x[1:], 2, 2.0", "shape"), ("x * nan, 2, 2.0", "NaN"),
        ("x * 3e38, 2, 2.0", "too large"))),
    # leaves
    ("leaf.take()", ConfigError, "no updates yet"),
    *((f"leaf.fold({update})", FastaggError) for update in ("x * inf", "x * 3e38", "x[1:]", "x, task=1.5")),
    *((f"leaf.fold_partial({partial})", FastaggError) for partial in (
        "fastagg.Partial(x * nan, 2, 2.0)", "fastagg.Partial(x[1:], 2, 2.0)", "fastagg.Partial(x, 0, 1.0)", "x")),
    # what a rule of one's own takes besides
    *((f"taking.receive('ann', x, extra={extra})", error, says) for extra, error, says in (
        ("None", ConfigError, "takes loss, own, 9 numbers in all, besides an update, got 0"),
        ("{'loss': 1.0}", ConfigError, "expected a dict with 'loss', 'own'"),
        ("{'loss': 1.0, 'own': x, 'more': 1}", ConfigError, "expected a dict with"),
        ("{'loss': 'low', 'own': x}", ConfigError, "extra: loss: expected numbers"),
        ("{'loss': 1.0, 'own': x[:2]}", ShapeMismatch, "own: expected 8 numbers, got 2"),
        ("{'loss': nan, 'own': x}", NonFiniteUpdate, "loss: NaN or infinity"))),
    ("small.receive('ann', x, extra={'loss': 1.0})", ConfigError, "this server's rule takes none"),
    # states
    *((f"{server}.load_state_dict({other}.state_dict())", CheckpointError, says) for server, other, says in (
        ("coded", "uncoded", "are fp32, this server's are 8bit"), ("uncoded", "coded", "are 8bit"),
        ("halved", "unhalved", "model_dtype="), ("unhalved", "halved", "model_dtype="),
        ("unhalved", "ordered", "deterministic"))),
    # encoding
    *((f"fastagg.encode(x, {how})", ConfigError) for how in (
        "'int7', seed=0", "'topk', seed=0", "'int8', seed=-1", "'int8', seed=0, feedback=1.0")),
    *((f"fastagg.{act}", ConfigError) for act in (
        "TopK(0)", "TopK(1.5)", "TopK(0.1, 'fp64')", "ErrorFeedback(2.0)")),
    # distillation
    *((f"distillation({wrong})", ConfigError) for wrong in (
        "alpha=(0.8, 0.2)", "alpha=2.0", "steps=0", "batch_size=0", "lr=-1.0", "eps=0.0", "betas=(1.0, 0.9)",
        "betas=(0.9, 0.9, 0.9)", "clip_norm=0.0", "samples=0", "unlabelled=None", "model=None")),
    ("fastagg.FedEcho(x, distill=distillation(), num_clients=2)", ConfigError, "parameters"),
    ("echo(distillation(forward=lambda model, x: x.argmax(dim=1)))", ConfigError, "logits"),
    ("echo(distillation(unlabelled=torch.zeros(2000, 4)), 10**9)", ConfigError, "needs ", " GB"),
    *((f"echo(distillation(unlabelled={data}))", DataError, "distill") for data in (
        "Path('folder')", "Path('nothing')", "Path('junk.npz')", "Path('junk.pt')", "torch.zeros(0, 4)", "[]",
        "object()", "{'a': torch.zeros(2), 'b': torch.zeros(3)}")),
    # adapters of a rank
    ("fastagg.lora.cut({'x.lora_A.weight': torch.ones(2, 5)}, 3)", ShapeMismatch, "at least 3, got 2"),
    ("fastagg.lora.padded({'x.lora_A.weight': torch.ones(2, 5)}, 1)", ShapeMismatch, "at most 1, got 2"),
    ("fastagg.lora.cut({'x.lora_A.weight': torch.ones(2, 5)}, 0)", ConfigError, "rank"),
    ("fastagg.lora.cut({'x.lora_A.weight': torch.ones(2, 2, 2)}, 1)", ShapeMismatch, "two dimensions"),
    # clients, watching
    ("_Periodic(lambda update: torch.zeros(3), 0)", ConfigError, "every: expected a whole number >= 1"),
    ("_Periodic(lambda update: torch.zeros(3), 1).begin(model, 0)", ShapeMismatch,
     "the server's model has 3 parameters, and 58 of this one train"),
    *((f"fastagg.clients.HttpClient({url!r}, 'eve')", ConfigError, "url: expected an address such as")
      for url in ("127.0.0.1:8000", "ftp://here", "http://", "", "htp://127.0.0.1")),
    ("fastagg.watch(3)", ConfigError, "expected a fastagg.Server"),
    *((f"trackers.made({given})", ConfigError, "expected trackers") for given in ("'runs/a'", "[3]")),
    # the command line
    ("$ run fadas-digits-mild --set client.lr=-1", "fadas-digits-mild: client.lr: input should be greater than 0"),
    ("$ run fadas-digits-mild --data-dir nowhere", "unknown key data.dir"),
    (f"$ run fadas-digits-mild --set data.{'x' * 300}=1", "x" * 300),  # a long one, too
    ("$ run fadas-digits-mild --set data.clients=2000 --set data.min_samples=1", "cannot give each of 2000 clients"),
    ("$ run fadas-digits-mild --out junk.pt/below-a-file", "cannot write results to"),
    ("$ run fadas-digits-mild --format jpeg", "'jpeg'"),
    ("$ run fadas-digits-mild --tracker tensorboard", "expected NAME=SETTING"),
    ("$ compare fadas-tabel7", "did you mean 'fadas-table7"),
    ("$ compare fadas-digits-mild fadas-digits-mild", "given more than once"),
    ("$ recipes nothing like this", "lists them all"),
    ("$ audit folder --receipts junk.pt", "expected a JSON object a line"),
    ("$ audit folder --import no_such_module", "no_such_module"),
    # one for each error that a page names and no line above has
    ("small.receive('bob', x, task=small.dispatch('ann').id)", OtherClient),
]  # fmt: skip


@dataclass(frozen=True)
class Own(fastagg.Optimizer):
    """A rule of a user's own, with a step in Python."""

    def step(self, x: Any, direction: Any, state: Any, lr: float, round: int) -> Any:
        return x + lr * direction, state


@dataclass(frozen=True)
class Taking(fastagg.Direction):
    """A rule that takes a number and a vector besides an update."""

    takes = {"loss": 1, "own": None}  # noqa: RUF012

    def combine(self, update: Any, facts: fastagg.Facts, state: Any) -> Any:
        return update, state


class Worst:
    """An id that is neither a number nor text, and whose repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def sent(server: fastagg.Server, *clients: int | str) -> fastagg.Server:
    """The server, which has sent its model to these clients."""
    for client in clients:
        server.dispatch(client)
    return server


def full() -> fastagg.Server:
    """A server of two clients, one of which has as many open tasks as it may."""
    server = fastagg.ASGD(torch.zeros(8), lr=0.1, max_open_per_client=2, max_clients=2)
    for version in range(2):
        sent(server, "ann", "bob").receive("bob", torch.ones(8), version)
    return server


def waiting(server: fastagg.Server) -> fastagg.Server:
    """The server, in whose round an update waits."""
    sent(server, 0, 1, 2).receive(2, torch.ones(8), num_samples=1)
    return server


def distillation(**settings: Any) -> fastagg.Distillation:
    return fastagg.Distillation(
        **{"model": nn.Linear(4, 2), "unlabelled": torch.ones(9, 4), "batch_size": 9, **settings}
    )


def echo(distill: fastagg.Distillation, clients: int = 2) -> fastagg.Server:
    return fastagg.FedEcho(nn.Linear(4, 2), distill=distill, num_clients=clients)


def federated(clients: int, kind: Any = None) -> Any:
    from fastagg.sim.data.federated import FederatedData, Samples

    x, y = torch.zeros(4, 3), torch.tensor([0, 1, 0, 1])
    return FederatedData([(kind or Samples)(x, y)] * clients, Samples(x, y), 2)


def imported(name: str) -> ModuleType:
    return pytest.importorskip(name)  # type: ignore[no-any-return]


X = torch.ones(8)
PLAIN: dict[str, Any] = {
    "fastagg": fastagg, "torch": torch, "nn": nn, "np": np, "registry": registry, "Path": Path, "x": X, "nan": math.nan,
    "inf": math.inf, "largest_half": torch.full((5,), 65_504.0, dtype=torch.float16), "freed": freed, "fake": fake,
    "Worst": Worst, "Own": Own, "Cohort": Cohort, "_Periodic": _Periodic, "distillation": distillation, "echo": echo,
    "gauss": fastagg.Gaussian(1.0, 1.0), "federated": federated, "sent": sent,
}  # fmt: skip
# What else a row may name: made for it alone, of the names made before it.
MADE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "model": lambda _: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
    "residual": lambda _: Residual(),
    "part": lambda _: fastagg.parts(Residual(), 2)[1],
    "server": lambda names: sent(fastagg.FedBuff(names["model"]), 0, 1),
    "task": lambda names: names["server"].dispatch(0),
    "flat": lambda names: names["server"].flat.clone() / 10,
    "trained": lambda names: {key: value + 0.1 for key, value in names["task"].params.items()},
    "old_task": lambda names: fastagg.FedBuff(names["model"]).dispatch(0),
    "weighted": lambda names: sent(fastagg.FedBuff(names["model"], weighting="samples"), 0),
    "weighted_ace": lambda names: sent(
        fastagg.ACE(names["model"], lr=0.1, num_clients=3, warmup="partial", weighting="samples"), 0),
    "ace": lambda names: sent(fastagg.ACE(names["model"], lr=0.1, num_clients=10), 1),
    "small": lambda _: sent(fastagg.FedBuff(torch.zeros(8)), "ann"),
    "numbered": lambda _: sent(fastagg.FedBuff(torch.zeros(8), num_clients=5), 0),
    "full": lambda _: full(),
    "asgd": lambda _: sent(fastagg.ASGD(torch.zeros(8), lr=0.1), 1),
    "private": lambda names: sent(fastagg.FedBuff(torch.zeros(8), privacy=names["gauss"]), "ann"),
    "tokens": lambda _: sent(fastagg.DecoupledDiLoCo(torch.zeros(8), buffer_size=2), 0),
    "bf16": lambda names: sent(
        fastagg.FedBuff({"b": names["largest_half"] - 300}, buffer_size=1, model_dtype="bf16"), 0),
    "taking": lambda _: sent(fastagg.Server(torch.zeros(8), Taking()), "ann"),
    "coded": lambda _: fastagg.FADAS(torch.zeros(8), moments="8bit"),
    "uncoded": lambda _: fastagg.FADAS(torch.zeros(8)),
    "halved": lambda _: fastagg.FedBuff(torch.zeros(8), model_dtype="bf16"),
    "unhalved": lambda _: fastagg.FedAvg(torch.zeros(8), clients_per_round=3),
    "ordered": lambda _: waiting(fastagg.FedAvg(torch.zeros(8), clients_per_round=3, deterministic=True)),
    "int8": lambda _: {k: v.copy() for k, v in fastagg.encode(X, "int8", seed=0).arrays().items()},
    "leaf": lambda _: fastagg.Leaf(torch.zeros(8)),
    "sim": lambda _: imported("fastagg.sim"),
    "own": lambda _: imported("fastagg.sim.clients.own"),
    "integrations": lambda _: imported("fastagg.integrations"),
    "trackers": lambda _: imported("fastagg.trackers"),
}  # fmt: skip
NEEDS = {"task": ("server",), "flat": ("server",), "trained": ("server", "task")}


def names_of(typed: str) -> dict[str, Any]:
    """What a row's words are, and what those are made of."""
    words = set(re.findall(r"\w+", typed))
    words |= {needed for word in words for needed in NEEDS.get(word, ())}
    names = dict(PLAIN)
    for word, make in MADE.items():
        if word in words or word == "model":
            names[word] = make(names)
    if "server" in names:  # of its two tasks the second one is answered
        names["server"].receive(1, names["server"].flat / 10)
    return names


def rows() -> Iterator[Row]:
    for typed, *says in MISTAKES:
        yield typed, MISTAKE, tuple(says)
    for call, name, values in VALUES:
        for value in values:
            yield call.format(f"{name}={value!r}"), (ConfigError,), (f"^{name}", repr(value).strip("(,)"))
    for typed, *rest in REFUSALS:
        error = rest.pop(0) if rest and isinstance(rest[0], type) else FastaggError
        yield typed, (error,), tuple(rest)


ROWS = [*rows()]


def message_of(command: str) -> str:
    """What the command line says when it refuses a command."""
    runner, app = imported("typer.testing").CliRunner(), imported("fastagg.cli.app").app
    done = runner.invoke(app, shlex.split(command))
    assert done.exit_code == 2 and done.stdout == "", done.output
    assert len(lines_of(done.stderr)) == 1 or "Usage: " in done.stderr, done.stderr
    return " ".join(done.stderr.split())


@pytest.mark.parametrize(("typed", "kinds", "says"), ROWS, ids=[f"{row[0]:.100}" for row in ROWS])
@pytest.mark.filterwarnings("ignore")
def test_a_refusal_is_explained_and_changes_nothing(
    typed: str, kinds: tuple[type[Exception], ...], says: tuple[str, ...], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_parts", dict(registry._parts))
    torch.manual_seed(0)
    names = names_of(typed)
    Path("folder").mkdir()
    for junk in ("junk.pt", "junk.npz"):
        Path(junk).write_text("junk")
    torch.save(names["model"].state_dict(), "model.pt")
    states = {name: held.state_dict() for name, held in names.items() if isinstance(held, fastagg.Server)}
    if typed.startswith("$ "):
        message = message_of(typed[2:])
    else:
        with pytest.raises(kinds) as refusal:
            exec(typed, names)
        message = str(refusal.value)
    for part in says:
        assert message.startswith(part[1:]) if part[0] == "^" else part in message, f"{part!r} is not in {message!r}"
    assert len(message) < 700 and message.count("id you mean") <= 1
    assert all(same(names[name].state_dict(), state) for name, state in states.items())
    assert "leaf" not in typed or not names["leaf"].count


# Errors that take a disk, a device, a thread or a federation, and where they are tried.
ELSEWHERE = {
    "AlreadyCounted": "server/test_ids.py",
    "DeviceError": "csrc/test_cuda_road.py",
    "NotDurable": "durable/test_uploads.py",
    "Reentered": "server/test_reentry.py",
    "RunFailed": "integrations/test_session.py",
    "TooSoon": "server/test_participation.py",
    "MissingDependency": "test_packaging.py",
    "MissingPart": "test_registry.py",
}


def test_every_public_error_has_a_line() -> None:
    public = {name: getattr(fastagg, name) for name in fastagg.__all__}
    public = {name for name, kind in public.items() if isinstance(kind, type) and issubclass(kind, FastaggError)}
    tried = {kind.__name__ for _, kinds, _ in ROWS for kind in kinds}
    assert public - tried - {"FastaggError"} <= ELSEWHERE.keys()
    for name, path in ELSEWHERE.items():
        assert name in (Path(__file__).parent / path).read_text(encoding="utf-8")

"""A hundred mistakes of users: each message names the argument, what came and what to do, and changes nothing."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import same
from torch import nn

import fastagg

# What the user types; then three parts of the message: the argument, what came, and what to do about it.
TABLE = Path(__file__).parents[1] / "reproduction" / "cifar8-quick.toml"  # an installed package finds it by its path

MISTAKES = [
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
    ("sim.run('fadas-digits-mild', lr=1)", "run", "'lr'", "{'client.lr': 1}), or another of this name: algorithm.lr"),
    ("sim.run('fadas-digits-mild', ['client.lr=1'])", "changes", "got ['client.lr=1']", "{'client.lr': 0.1}"),
    ("sim.run('fadas-digits-mild', out=3)", "out", "got 3", "a str or a pathlib.Path"),
    ("sim.run(3)", "config", "got 3", "a recipe's name"),
    ("sim.run('fadas-digits-mild', seeds=3)", "run", "'seeds'", "`fastagg compare RECIPE --seeds 3` runs several"),
    ("sim.run('fadas-digits-mild', seed='3')", "seed", "got '3'", "integer"),
    ("sim.run('fadas-digits-mild', {'seeds': 3})", "seeds", "unknown key", "a run has one seed"),
    ("sim.run('fadas-digits-mild', model=model)", "model", "got a Sequential", "lambda shape, classes: Net()"),
    ("sim.run('fadas-digits-mild', model='mlp')", "model", "got a str", "a function of (shape, classes)"),
    ("sim.run('fadas-digits-mild', model=lambda shape: model)", "model", "does not take", "too many positional"),
    ("sim.run('fadas-digits-mild', own=own.Own(train=lambda model, data, task: 1))", "own.train", "not take", "many"),
    ("sim.run('fadas-digits-mild', own=own.Own(change=3))", "own.change", "got a int", "expected a function"),
    ("sim.run('fadas-digits-mild', data=federated(2))", "concurrency", "the 2 clients", "that was passed"),
    ("federated(2, torch.utils.data.TensorDataset)", "client 0", "a TensorDataset", "expected Samples(x, y)"),
    ("sim.run('fadas-digits-mild', {'algorithm.name': 'FedBuff'})", "algorithm", "FedBuff has no such", "one of FADAS"),
    ("sim.run('fedavg-digits-large', {'algorithm.name': 'FedProx'})", "FedProx", "client.mu", "it is FedAvg"),
    ("$ run fadas-digits-mild --seeds 3", "--seeds", "No such option", "an option of `fastagg compare`"),
    # what all integrations share
    ("integrations.preset('fedbuf')", "algorithm", "got 'fedbuf'", "did you mean 'FedBuff'?"),
    ("integrations.Stop.of({'targt': 0.9})", "Stop", "'targt'", "did you mean 'target'?"),
    ("integrations.Stop.of(0.9)", "stop", "got 0.9", "write Stop(...)"),
    ("trackers.made({'tensorbord': 'runs'})", "trackers", "'tensorbord'", "did you mean 'tensorboard'?"),
]  # fmt: skip


def message_of(command: str) -> str:
    """What the command line says when it refuses a command."""
    runner, app = pytest.importorskip("typer.testing").CliRunner(), pytest.importorskip("fastagg.cli.app").app
    done = runner.invoke(app, shlex.split(command))
    assert done.exit_code == 2 and done.stdout == "", done.output
    assert done.output.count("id you mean") <= 1
    return " ".join(done.stderr.split())


@pytest.mark.parametrize(("typed", "argument", "came", "do"), MISTAKES, ids=[row[0] for row in MISTAKES])
@pytest.mark.filterwarnings("ignore")
def test_a_mistake_is_explained_and_changes_nothing(
    typed: str, argument: str, came: str, do: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    server, weighted = fastagg.FedBuff(model), fastagg.FedBuff(model, weighting="samples")
    ace, old_task = fastagg.ACE(model, lr=0.1, num_clients=10), fastagg.FedBuff(model).dispatch(0)
    task, flat = server.dispatch(0), server.flat.clone() / 10
    server.dispatch(1)
    server.receive(1, flat)
    weighted.dispatch(0)
    ace.dispatch(1)
    names: dict[str, Any] = {
        "fastagg": fastagg, "torch": torch, "nn": nn, "np": np, "model": model, "server": server, "ace": ace,
        "weighted": weighted, "task": task, "old_task": old_task, "flat": flat,
        "trained": {key: value + 0.1 for key, value in task.params.items()},
    }  # fmt: skip
    Path("folder").mkdir()
    Path("junk.pt").write_text("junk")
    Path("rounds.csv").write_text("client,round,seconds\nann,1,2.5\n")
    torch.save(model.state_dict(), "model.pt")
    servers = server, weighted, ace
    states = [one.state_dict() for one in servers]

    if typed.startswith("$ "):
        said = message_of(typed[2:])
    else:
        if typed.startswith(("sim.", "federated")):
            names["sim"] = pytest.importorskip("fastagg.sim")
            from fastagg.sim.clients import own
            from fastagg.sim.data.federated import FederatedData, Samples

            def federated(clients: int, kind: Any = Samples) -> FederatedData:
                x, y = torch.zeros(4, 3), torch.tensor([0, 1, 0, 1])
                return FederatedData([kind(x, y)] * clients, Samples(x, y), 2)

            names |= {"own": own, "federated": federated}
        if typed.startswith(("integrations.", "trackers.")):
            from fastagg import integrations
            from fastagg.integrations import trackers

            names |= {"integrations": integrations, "trackers": trackers}
        with pytest.raises((fastagg.FastaggError, AttributeError)) as refusal:
            exec(typed, names)
        said = str(refusal.value)
    for part in (argument, came, do):
        assert part in said, f"{part!r} is not in {said!r}"
    assert len(said) < 700
    assert all(same(one.state_dict(), state) for one, state in zip(servers, states, strict=True))


def test_there_are_a_hundred() -> None:
    assert len({typed for typed, *_ in MISTAKES}) >= 100

"""Federated learning of handwritten digits in plain processes: a server, four clients, one of them slow.

python train.py
"""

from __future__ import annotations

import multiprocessing
import time

import numpy as np
import torch
from sklearn.datasets import load_digits

import fastagg

CLIENTS, SLOW = 4, 0.2  # client 0 takes so many seconds longer for a task
images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
images = images.float() / 16


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def arrays(state: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """NumPy's arrays go through a queue as copies. torch's would share the server's memory."""
    return {name: value.numpy() for name, value in state.items()}


def client(number: int, inbox: multiprocessing.Queue, answers: multiprocessing.Queue) -> None:
    torch.set_num_threads(1)
    x, y, model = images[:1500][number::CLIENTS], labels[:1500][number::CLIENTS], network()
    for sent in iter(inbox.get, None):
        model.load_state_dict({name: torch.tensor(value) for name, value in sent.items()})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(10):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        time.sleep(0 if number else SLOW)
        answers.put((number, arrays(model.state_dict())))


def serve(model: torch.nn.Module, inboxes: list[multiprocessing.Queue], answers: multiprocessing.Queue) -> None:
    """Train ``model`` with the clients behind ``inboxes``."""
    server = fastagg.FedBuff(model, lr=0.5, buffer_size=2)
    tasks = [server.dispatch(number) for number in range(CLIENTS)]
    for task, inbox in zip(tasks, inboxes, strict=True):
        inbox.put(arrays(task.params))
    while server.version < 40:
        number, trained = answers.get()
        server.receive_model(tasks[number], trained)
        tasks[number] = server.dispatch(number)
        inboxes[number].put(arrays(tasks[number].params))
    model.load_state_dict(server.parameters())


def main() -> None:
    context, model = multiprocessing.get_context("spawn"), network()
    answers, inboxes = context.Queue(), [context.Queue() for _ in range(CLIENTS)]
    for number in range(CLIENTS):
        context.Process(target=client, args=(number, inboxes[number], answers), daemon=True).start()
    serve(model, inboxes, answers)
    right = model(images[1500:]).argmax(1) == labels[1500:]
    print(f"accuracy {right.float().mean():.0%}")


if __name__ == "__main__":
    main()

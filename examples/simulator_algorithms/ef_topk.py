"""Top-k with error feedback (Stich et al. 2018): the largest numbers are sent, what is not sent is added next time."""

import torch


def train(model, data, task, state, share=0.1):
    task.descend(model, data)
    rest = state or {}
    update = {name: array + rest.get(name, 0.0) for name, array in task.delta(model).items()}
    flat = torch.cat([array.flatten().abs() for array in update.values()])
    least = flat.topk(max(1, int(share * flat.numel()))).values[-1]
    sent = {name: torch.where(array.abs() >= least, array, 0.0) for name, array in update.items()}
    return {name: array.to_sparse() for name, array in sent.items()}, {n: update[n] - sent[n] for n in sent}

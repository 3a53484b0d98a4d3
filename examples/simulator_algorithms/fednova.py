"""FedNova (Wang et al. 2020): updates are divided by their steps, so that many steps do not count more.

The server's learning rate (algorithm.lr) is tau_eff, the mean number of steps.
"""


def train(model, data, task, state):
    steps = 0

    def count(model):
        nonlocal steps
        steps += 1

    task.descend(model, data, count)
    update = task.delta(model)
    for name, _ in model.named_parameters():
        update[name] = update[name] / steps
    return update, state

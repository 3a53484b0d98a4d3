"""FedProx (Li et al. 2020): the local loss has the term mu/2 |w - w_sent|^2."""


def train(model, data, task, state, mu=0.1):
    def pull(model):
        for name, weight in model.named_parameters():
            weight.grad += mu * (weight.detach() - task.sent[name])

    task.descend(model, data, pull)
    return task.delta(model), state

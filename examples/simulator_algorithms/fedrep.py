"""FedRep (Collins et al. 2021): a client trains its own last layer first, then the shared body, which alone is sent."""


def train(model, data, task, state):
    weights = dict(model.named_parameters())
    head = list(weights)[-2:]
    personal(model, state or {})
    for trained in (head, weights.keys() - head):
        for name, weight in weights.items():
            weight.requires_grad_(name in trained)
        task.descend(model, data)
    update = task.delta(model)
    for name in head:
        del update[name]
    return update, {name: weights[name] for name in head}


def personal(model, state):
    model.load_state_dict(state, strict=False)

"""Ditto (Li et al. 2021): besides the shared model a client trains its own, kept near the shared by a proximal term."""


def train(model, data, task, state, lam=0.1):
    own = dict(task.sent) if state is None else state
    task.descend(model, data)
    update = task.delta(model)

    def near(model):
        for name, weight in model.named_parameters():
            weight.grad += lam * (weight.detach() - task.sent[name])

    model.load_state_dict(own)
    task.descend(model, data, near)
    return update, model.state_dict()


def personal(model, state):
    model.load_state_dict(state)

"""Every method there is learns the digits in a few rounds."""

import pytest

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.learning.evaluate import evaluate
from tests.helpers import METHODS, final_state

# Test accuracy on the digits after six rounds of four clients, by the method's file in conf/. A method that is not here
# is held to a modest bound. FedPM has but a random network to choose from.
BOUNDS = {
    **dict.fromkeys(("drive", "eden", "fedavg", "fedmrn", "fedmrns", "quantized", "signsgd", "terngrad"), 0.94),
    **{"topk": 0.88, "fedpm": 0.5, "fedsparsify": 0.85, "fedscalar": 0.35, "submodel": 0.45},
}
MODEST = 0.3
RUNS = {
    # a number a round needs more rounds and fewer weights
    "fedscalar": ("experiment=fedscalar_digits", "rounds=100", "model.hidden=[]", "local.lr=0.003"),
    "submodel": ("rounds=10", "local.epochs=3", "strategy=submodel"),  # a round trains a part of the weights
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_few_rounds_on_digits(name: str) -> None:
    own = RUNS.get(name, ("rounds=6", "local.epochs=3", f"strategy={name}"))
    overrides = (*own, "clients=4", "clients_per_round=4")
    worker = build_worker(load_config(overrides))
    assert worker.method.name == name
    model, _ = worker.model()
    model.load(*final_state(overrides))
    assert evaluate(model, worker.task, worker.task.load("test")).headline >= BOUNDS.get(name, MODEST)

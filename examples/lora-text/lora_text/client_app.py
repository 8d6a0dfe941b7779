"""The ClientApp: each client trains the adapters on its sentences."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from peft import get_peft_model_state_dict, set_peft_model_state_dict

from fedmrn_app.plugin import compress_uplink, learn_masks
from lora_text.task import new_model, sentences, train

app = ClientApp(mods=[compress_uplink])


@app.train()
def train_client(message: Message, context: Context) -> Message:
    """Train the adapters in the message, and return them."""
    config, client = context.run_config, context.node_config["partition-id"]
    torch.set_num_threads(1)
    x, y = sentences(config, client, config["sentences"])
    model = new_model(config)
    set_peft_model_state_dict(model, message.content["arrays"].to_torch_state_dict())
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=config["learning-rate"], weight_decay=0.0)
    if config["method"] == "fedmrn":
        learn_masks(optimizer, model, message, steps=config["local-steps"])
    seed = 1000 * message.content["config"]["server-round"] + client
    metrics = MetricRecord({"train_loss": train(model, x, y, config, optimizer, seed), "num-examples": len(y)})
    arrays = ArrayRecord(get_peft_model_state_dict(model))
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

"""The ClientApp: each client fits a logistic regression to its share of the digits."""

import warnings

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedmrn_app.plugin import compress_uplink
from sklearn_digits.task import arrays_of, new_model, rows_of, set_arrays

app = ClientApp(mods=[compress_uplink])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Fit the model in the message to the client's rows, and return it."""
    x, y = rows_of(context.node_config["partition-id"], context.node_config["num-partitions"])
    model = new_model(context.run_config["local-epochs"])
    set_arrays(model, message.content["arrays"].to_numpy_ndarrays())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a few epochs do not converge
        model.fit(x, y)
    content = {"arrays": ArrayRecord(arrays_of(model)), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(RecordDict(content), reply_to=message)

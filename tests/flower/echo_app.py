"""A small ClientApp: it adds up, counts its messages in the node's state, and misbehaves on request."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable


def double(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A mod that changes the message before the app sees it."""
    record = message.content.config_records["ask"]
    record["number"] = 2 * int(record["number"])  # type: ignore[arg-type]
    return call_next(message, context)


app = ClientApp(mods=[double])


@app.train()
def train(message: Message, context: Context) -> Message:
    began, ask = time.monotonic(), message.content.config_records["ask"]
    seen = int(context.state.config_records.get("seen", ConfigRecord({"count": 0}))["count"])  # type: ignore[arg-type]
    context.state["seen"] = ConfigRecord({"count": seen + 1})
    if "fail" in ask:
        raise RuntimeError(str(ask["fail"]))
    if "seconds" in ask:
        time.sleep(float(ask["seconds"]))  # type: ignore[arg-type]
    if "deaths" in ask:  # the process dies so many times
        for number in range(int(ask["deaths"])):  # type: ignore[arg-type]
            mark = Path(str(ask["folder"])) / f"death-{number}"
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
    print(f"node {context.node_id} answers", flush=True)
    total = int(ask["number"]) + int(context.node_config["partition-id"])  # type: ignore[arg-type]
    times = {"began": began, "ended": time.monotonic()}
    found: dict[str, Any] = {"sum": total, "seen": seen, "pid": os.getpid(), **times}
    content = RecordDict({"answer": ConfigRecord({**found, "offset": context.run_config["offset"]})})
    return Message(content, reply_to=message)

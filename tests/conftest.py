import os

# before anything reads them: no telemetry, and the hub's short answer where there is no network
os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")

import torch

torch.set_num_threads(1)

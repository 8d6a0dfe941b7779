"""The environment variables that the package reads and sets. No other module spells their names."""

from __future__ import annotations

CACHE = "FEDMRN_CACHE"  # folder of decoded data sets, instead of $XDG_CACHE_HOME/fedmrn
STATE_FOLDER = "FEDMRN_STATE"  # folder of what clients keep between rounds, where the node's configuration names none
VERSIONS_FOLDER = "FEDMRN_VERSIONS"  # set by a simulation: folder of the global models that its clients hold
ALLOW_TARGETS = "FEDMRN_ALLOW_TARGETS"  # code that a node may run, where its configuration does not say `allow-targets`
CLUSTER = "FEDMRN_RAY"  # set by a simulation: the address of the Ray cluster that it joins
RUN_FOLDER = "FEDMRN_RUN_FOLDER"  # set by a simulation: the run's folder, by which processes left behind are found
CONNECTION = "FEDMRN_ON"  # the connection of `fedmrn --on`, for the processes of a sweep's launcher too

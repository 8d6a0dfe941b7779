import gc
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

# before anything reads them: no telemetry, and the hub's short answer where there is no network
os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")

import pytest
import torch

from tests.supernodes import Federation

torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases as slow that `fast_cases` leaves to the slow tests."""
    cases: dict[tuple[str, object], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if mark := item.get_closest_marker("fast_cases"):
            cases[item.nodeid.partition("[")[0], mark.args[0]].append(item)
    for (_, count), found in cases.items():
        fast = {round(place * (len(found) - 1) / max(1, int(str(count)) - 1)) for place in range(int(str(count)))}
        for number, item in enumerate(found):
            if number not in fast:
                item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Leave what was imported out of collections, of which Flower makes one for each record of arrays."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["FEDMRN_STATE"] = str(tmp_path_factory.mktemp("state"))  # not the user's own


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    """A SuperLink, which ends with the test and all that was started with it."""
    started = Federation(tmp_path)
    try:
        yield started
    finally:
        started.stop()

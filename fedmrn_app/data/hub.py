"""Data sets of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from fedmrn_app.data.place import Place
from fedmrn_app.data.tables import Table, open_tables, table_of
from fedmrn_app.errors import needs_extra

HUB_TIMEOUT = 5.0  # seconds to wait for the hub's first answer


def read_split(place: Place, hub: str | None, subset: str | None, split: str, holds: str) -> Table:
    """Open one split of a data set of the hub, which is downloaded on first use, or of a place on disk.

    Args:
        place: the place; with the key `dataset` the hub is read.
        hub: the data set's name on the hub.
        subset: its configuration there.
        split: `train`, `val` or `test`.
        holds: what a place on disk must be, as errors describe it.

    Raises:
        DataError: the hub does not answer, or there is no such split.
        ConfigError: the library `datasets` is not installed.
    """
    if place.on_disk:
        tables = open_tables(place.find(holds), place)
        if split not in tables:
            raise place.error("split", f"has no {split} split; it must be {holds}")
        return tables[split]()
    if hub is None:
        raise place.error("hub", "is not on the hub; set dataset.path=PLACE")
    with needs_extra("data", place.key, place.value):
        from datasets import load_dataset
        from datasets.utils.logging import disable_progress_bar

    _require_hub(place, hub)
    disable_progress_bar()
    with place.reading(f"read as '{hub}' of the Hugging Face hub"):
        return table_of(load_dataset(hub, subset, split={"val": "validation"}.get(split, split)))


def _require_hub(place: Place, hub: str) -> None:
    """Ask the hub for the data set's card with a short timeout, because the library's own timeout is long."""
    from huggingface_hub import HfApi, constants

    reason = "HF_HUB_OFFLINE is set"
    if not constants.HF_HUB_OFFLINE:
        try:
            HfApi().dataset_info(hub, timeout=HUB_TIMEOUT)
            return
        except Exception as error:
            reason = f"the hub does not answer ({type(error).__name__})"
    if not (Path(constants.HF_HUB_CACHE) / f"datasets--{hub.replace('/', '--')}").is_dir():
        way = "set dataset.path=FOLDER with its parquet files, or take dataset=digits, which needs no download"
        raise place.error("hub", f"cannot fetch '{hub}' from the Hugging Face hub: {reason}; {way}")

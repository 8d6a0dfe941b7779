"""Splits of a data set from the Hugging Face hub, or from a local folder of the same layout, by flwr-datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedmrn_app.errors import DataError

HUB_TIMEOUT = 5.0  # seconds to wait for the hub's first answer


def local_folder(path: str, what: str, key: str = "dataset.path") -> Path:
    """The folder or file that a path names, absolute.

    Raises:
        DataError: there is none; the line says that it must hold `what`.
    """
    folder = Path(path).expanduser().resolve()
    if not path or not folder.exists():
        raise DataError(f"{key}={path}: no such folder; it must hold {what}")
    return folder


def read_hub_split(name: str, hub: str | None, subset: str | None, path: Path | None, split: str) -> Any:
    """Return one split as a `datasets.Dataset`; a local folder takes the place of the hub.

    Raises:
        DataError: the hub does not answer, or there is no such split.
    """
    if path is None:
        _require_hub(name, hub)
    from datasets.utils.logging import disable_progress_bar
    from flwr_datasets import FederatedDataset

    disable_progress_bar()
    source = hub if path is None else str(path)
    tried = f"dataset.path={path}" if path is not None else f"'{hub}' on the Hugging Face hub"
    try:
        federated = FederatedDataset(
            dataset=source, subset=subset if path is None else None, partitioners={"train": 1}, shuffle=False
        )
        return federated.load_split(split)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{tried}: cannot be read as {name}: {reason}") from error


def _require_hub(name: str, hub: str | None) -> None:
    """Ask the hub for the data set's card with a short time-out, so that nobody waits for the long one."""
    if hub is None:
        raise DataError(f"dataset={name}: is on no hub; say dataset.path=PLACE")
    from huggingface_hub import HfApi, constants

    if not constants.HF_HUB_OFFLINE:
        try:
            HfApi().dataset_info(hub, timeout=HUB_TIMEOUT)
            return
        except Exception as error:
            reason = f"the hub does not answer ({type(error).__name__})"
    else:
        reason = "HF_HUB_OFFLINE is set"
    if not (Path(constants.HF_HUB_CACHE) / f"datasets--{hub.replace('/', '--')}").is_dir():
        raise DataError(
            f"dataset={name}: cannot fetch '{hub}' from the Hugging Face hub: {reason}; "
            "say dataset.path=FOLDER with its parquet files, or take dataset=digits, which needs no download"
        )

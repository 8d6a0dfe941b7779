"""Settings that a person has given and that have no effect in this run; each is named in one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fedmrn_app.config.build import build_run_method
from fedmrn_app.config.schema import Config
from fedmrn_app.config.targets import TARGET
from fedmrn_app.methods.fedmrn import NoiseMask

Remark = tuple[bool, str, str]  # whether it applies, the keys below a prefix, and why they have no effect


def remarks(config: Config, overrides: Sequence[str], labels: int | None = None) -> list[str]:
    """Return a line for each override without effect.

    Args:
        config: the run's configuration.
        overrides: what the command line has set, as `KEY=VALUE`.
        labels: the number of different labels of the rows; None where they have none, or are on devices.
    """
    given: dict[str, str] = {}
    lines = []
    for word in overrides:
        key, _, value = word.lstrip("+").partition("=")
        if key in given:
            lines.append(f"{key}={given[key]} has no effect because {key}={value} follows")
        given[key] = value
    if "evaluate_train" in given and "evaluation.train" in given:
        lines.append(f"evaluate_train={given['evaluate_train']} has no effect because evaluation.train is given too")
    elif "evaluate_train" in given:
        lines.append("evaluate_train is called evaluation.train now, and is read as that")
    rows = [*_rounds(config), *_data(config, labels), *_method(config), *_experiment(given)]
    for applies, keys, reason in rows:
        prefix, _, names = keys.rpartition(".")
        found = [key for name in names.split("|") if applies and (key := f"{prefix}.{name}".lstrip(".")) in given]
        lines += [f"{key}={given[key]} has no effect because {reason}" for key in found]
    return lines


def _rounds(config: Config) -> Iterator[Remark]:
    wanted, slowness = config.clients_per_round, config.simulation.slowness
    noised, flipped = config.privacy.noised, config.privacy.randomized_response is not None
    private = "nothing gets noise; set privacy.noise_multiplier=1 or privacy.epsilon=8 too"
    yield wanted == config.clients, "oversample", f"a round uses all {wanted} clients"
    yield config.server == "sync", "max_staleness", "rounds use replies to their own model only; set server=async"
    yield config.local.steps is not None, "local.epochs", f"local.steps={config.local.steps} replaces it"
    yield not noised, "privacy.delta|sampling|tally_clip", private
    yield not (noised or flipped), "privacy.noise_seed", private
    yield noised, "client_weights", "with noise all clients weigh the same"
    yield slowness is not None and slowness[1] == 1, "simulation.slow", "a factor of 1 slows no client down"
    evaluation = config.evaluation
    yield not evaluation.by_clients, "evaluation.clients", "no client evaluates; set evaluation.on=clients"
    yield not evaluation.on_server, "evaluation.samples", "the server evaluates nothing; set evaluation.on=both"
    yield (evaluation.patience or 0) >= config.rounds, "evaluation.patience", f"the run ends at rounds={config.rounds}"
    yield config.uplink.budget is None, "uplink.schedule", "it divides a budget; set uplink.budget=0.1"
    yield config.uplink.budget is not None, "uplink.bits", f"uplink.budget={config.uplink.budget} replaces it"
    yield True, "simulation.own_network", "a run on this machine opens no port"
    yield not config.downlink.on_lattice, "downlink.step", f"downlink.dtype={config.downlink.dtype} has no steps"
    sent_whole = not config.downlink.on_lattice and config.downlink.memory
    yield sent_whole, "downlink.memory", f"downlink.dtype={config.downlink.dtype} is always sent whole"


def _data(config: Config, labels: int | None) -> Iterator[Remark]:
    dataset = config.dataset
    path, digits = str(dataset.get("path") or ""), dataset.get("name") == "digits"
    table = "dataset.image_column|label_column|feature_columns"
    yield digits or path.lower().endswith(".npz"), table, "these rows have no columns with names"
    yield digits or bool(path), "dataset.hub|subset", "these rows are not read from the hub"
    yield TARGET in config.task, "dataset", "task=own brings its data"
    shares = f"partition={config.partition.name} divides the rows without regard to it; leave the partition out"
    yield config.partition.name != "natural", "dataset.group_column", shares
    more = labels is not None and int(dataset.get("classes") or 0) > labels
    yield more, "dataset.classes", f"the rows have {labels} labels, and no row can have a further one"


def _method(config: Config) -> Iterator[Remark]:
    codec, options = build_run_method(config).codec, config.strategy
    name = options["name"]
    yield not hasattr(codec, "noise"), "noise", f"strategy={name} masks no noise"
    yield not hasattr(codec, "noise"), "noise.alpha|distribution", f"strategy={name} masks no noise"
    yield not hasattr(codec, "coder"), "uplink.coder", f"strategy={name} codes no masks"
    budget = f"uplink.budget={config.uplink.budget} sets the size of replies"
    yield config.uplink.budget is not None, "strategy.bits|error|ratio", budget
    if name == "quantized":
        error, scale = options["error"], options["scale"]
        replaced = error is not None and config.uplink.budget is None
        yield replaced, "strategy.bits", f"strategy.error={error} replaces it"
        yield scale != "auto", "strategy.half_length", f"strategy.scale={scale} fixes the length"
    if name == "fedsparsify":
        yield options["schedule"] == "rounds", "strategy.prunings", "strategy.schedule=rounds prunes once a round"
    if name in ("fedmrn", "fedmrns"):
        assert isinstance(codec, NoiseMask)
        alone = codec.coder == "packed" or not replace(codec, low_rank=True).may_estimate
        yield alone, "strategy.low_rank", "masks are sent without an estimate of the update in this run"
    if name != "submodel":
        return
    masking, channels = options["masking"], options["granularity"] == "channel"
    by_masking = f"strategy.masking={masking} has none"
    yield masking == "full", "strategy.capacities|assignment", "strategy.masking=full gives all clients all weights"
    yield masking != "rolling", "strategy.windows|starts", by_masking
    yield masking == "rolling" and options["windows"] != "shuffled", "strategy.starts", "only shuffled windows have it"
    yield not (masking == "random" and channels), "strategy.draws", "only random channels are drawn"
    yield len(options["capacities"]) == 1, "strategy.assignment", "there is one capacity only"


def _experiment(given: dict[str, str]) -> Iterator[Remark]:
    yield "experiment" not in given, "scale|part", "it is for an experiment; set experiment=NAME"

"""The `fedmrn` command: Hydra's command line for one simulated run or, with --multirun, for a sweep of runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn, cast

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import run_job
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from fedmrn_app.config.build import find_conf
from fedmrn_app.config.compose import (
    check_values,
    compose_checked,
    open_own_groups,
    own_hydra,
    plain_values,
    quote_override,
    typed_override,
)
from fedmrn_app.config.sweep import Sweep, open_sweep, run_folder, swept
from fedmrn_app.environment import set_connection
from fedmrn_app.errors import ConfigError, FedMRNError
from fedmrn_app.report.console import print_outcomes
from fedmrn_app.runtime.claim import claimed
from fedmrn_app.runtime.data_command import COMMAND, show_data
from fedmrn_app.runtime.remote import take_on
from fedmrn_app.runtime.runner import console, errors, task
from fedmrn_app.runtime.sweeps import count_unfit, forget_outcomes, read_best, read_outcomes
from fedmrn_app.system.atomic_io import os_reason
from fedmrn_app.system.stopping import EXIT_CODE, Stopped

MANY = 20  # runs of a sweep whose check takes a while
_OWN_FILES = (
    "fedmrn takes no configuration files; give their values as KEY=VALUE, and name code of your own with "
    "model=own model._target_=MODULE.CLASS or task=own task._target_=MODULE.CLASS"
)
_CHECK = "_check_help"  # argparse's method, from Python 3.14 on
_INFORMS = {"--help", "-h", "--hydra-help", "--version", "--info", "-i", "--cfg", "-c"}


def main() -> None:
    """Run the `fedmrn` command; exit with 0 if every run completed, 1 if one failed, 2 on a wrong configuration.

    75 says that a scheduler has stopped it, and that the same command goes on with `resume=auto` and the run's folder.

    `fedmrn data` shows data without a run.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra passes errors on, instead of printing a traceback itself
    sweep, composed = None, None
    folder: Path | None = None
    try:
        with ExitStack() as folders:
            if sys.argv[1:2] == [COMMAND]:
                return show_data(sys.argv[2:], console)
            folders.enter_context(late_help())
            arguments, on = take_on(sys.argv[1:])
            _check_options(arguments)
            if _INFORMS & set(arguments):
                sys.argv[1:] = open_own_groups(arguments)
            else:
                options = [word for word in arguments if word.startswith("-")]
                overrides = [word for word in arguments if not word.startswith("-")]
                if {"--multirun", "-m"} & set(options):
                    sweep = _checked_sweep(overrides, here=on is None)
                    folder, key = sweep.folder, "sweep"
                else:
                    composed = _checked_run(overrides)
                    folder, key = run_folder(composed.hydra), "run"
                sys.argv[1:] = [*options, *open_own_groups(overrides)]  # in this order for Hydra's parser
                if folder is not None:
                    folders.enter_context(claimed(folder, f"hydra.{key}.dir"))
                    word = quote_override(f"hydra.{key}.dir", str(folder))
                    sys.argv.append(word)
                if composed is None or folder is None or options or not _is_plain(composed):
                    composed = None
                else:
                    composed.hydra.run.dir = str(folder)
                    composed.hydra.overrides.hydra.append(word)
                if sweep is not None:
                    forget_outcomes(sweep.folder)
            if on is not None:
                set_connection(on)
            if composed is not None:
                _run(composed)
            else:
                hydra.main(version_base="1.3", config_path=str(find_conf()), config_name="config")(task)()
    except SystemExit as left:
        if sweep is not None and left.code:  # such as a launcher whose process died
            print_sweep(sweep)
        raise
    except (FedMRNError, HydraException, OmegaConfBaseException) as error:
        errors.print(f"fedmrn: {' '.join(str(error).split())}", markup=False)
        sys.exit(2)
    except OSError as error:
        errors.print(f"fedmrn: {os_reason(error)}", markup=False)
        sys.exit(1)
    except Stopped as stop:
        errors.print(f"fedmrn: {stop}", markup=False)
        sys.exit(EXIT_CODE)
    except KeyboardInterrupt:
        if folder is None:
            errors.print("interrupted")
        else:
            word = typed_override(f"hydra.{'run' if sweep is None else 'sweep'}.dir", str(folder))
            errors.print(f"interrupted; the same command with {word} resume=auto goes on", markup=False)
        sys.exit(130)
    sys.exit(1 if sweep is not None and not print_sweep(sweep) else 0)


@contextmanager
def late_help() -> Iterator[None]:
    """Let options be added whose help is no string yet.

    Python 3.14 refuses the help of Hydra 1.3's `--shell-completion`, an object that makes its text when it is printed.
    """
    check = getattr(argparse.ArgumentParser, _CHECK, None)

    def check_strings(parser: argparse.ArgumentParser, action: argparse.Action) -> None:
        if check is not None and isinstance(action.help, str):
            check(parser, action)

    setattr(argparse.ArgumentParser, _CHECK, check_strings)
    try:
        yield
    finally:
        if check is None:
            delattr(argparse.ArgumentParser, _CHECK)
        else:
            setattr(argparse.ArgumentParser, _CHECK, check)


def _check_options(arguments: Sequence[str]) -> None:
    """Refuse options that Hydra does not have; overrides are left to `_checked`."""

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; `fedmrn --help` lists the options", code="option")

    parser = get_args_parser()
    setattr(parser, "error", refuse)  # noqa: B010 (a method)
    given = parser.parse_intermixed_args([word for word in arguments if word not in ("--help", "-h", "--version")])
    options = "--config-path", "--config-name", "--config-dir", "--experimental-rerun"
    others = {name: getattr(given, name[2:].replace("-", "_")) for name in options}
    for name, value in others.items():
        if value is not None:
            raise ConfigError(f"{name} {value}: {_OWN_FILES}", code="option", key=name, value=value)
    if given.resolve and given.cfg is None:
        refuse("--resolve: goes with --cfg, such as --cfg job --resolve")
    kinds = {"--run": given.run, "--multirun": given.multirun, "--cfg": given.cfg, "--info": given.info}
    if len(both := [name for name, value in kinds.items() if value]) > 1:
        refuse(f"{both[0]}: does not go with {both[1]}; leave one of them out")


def _checked_sweep(overrides: Sequence[str], *, here: bool) -> Sweep:
    """Check all runs of a sweep before the first one starts; `here` says whether this machine trains."""
    sweep = open_sweep(overrides)
    if len(sweep.runs) == 1 and not sweep.searches:
        console.print("--multirun has no effect because no setting has several values")
    elif len(sweep.runs) > MANY:
        console.print(f"checking {len(sweep.runs)} runs before the first one starts")
    elsewhere = any(word.startswith("hydra/launcher=") for word in overrides)  # which may have other disks
    sweep.check(here=here and not elsewhere)
    return sweep


def _checked_run(overrides: Sequence[str]) -> DictConfig:
    """Compose and check the configuration of one run, with Hydra's own settings."""
    composed = compose_checked(overrides, hydra=True)
    check_values(plain_values(composed))
    if any(word.startswith("experiment=") for word in overrides) and (values := swept(composed.hydra)):
        console.print(f"one run; with --multirun the experiment is a sweep over {' '.join(values)}", markup=False)
    return composed


def _is_plain(composed: DictConfig) -> bool:
    """Return whether Hydra would do no more with a configuration than start one run."""
    return composed.hydra.mode != RunMode.MULTIRUN and not composed.hydra.callbacks


def _run(composed: DictConfig) -> None:
    """Start one run as Hydra's main function does, which would compose the configuration twice more."""
    composed.hydra.mode = RunMode.RUN
    with own_hydra():
        loader = GlobalHydra.instance().config_loader()
    context = HydraContext(loader, cast(Any, Callback()))
    _ = run_job(task, composed, "hydra.run.dir", None, context).return_value  # raises what the task has raised


def print_sweep(sweep: Sweep) -> bool:
    """Print the outcomes of a sweep's runs; return whether all of them completed."""
    numbered = read_outcomes(sweep.folder)
    if len(numbered) > 1:
        print_outcomes(console, [outcome for _, outcome in numbered], [number for number, _ in numbered])
    if best := read_best(sweep.folder):
        console.print(best, markup=False)
    lines = [f"run {number} failed ({run}): {result}" for number, (run, result) in numbered if isinstance(result, str)]
    failed, missing = len(lines), 0 if sweep.searches else len(sweep.runs) - len(numbered)
    if missing:
        lines.append(f"{missing} runs exited without reporting a result")
    if lines:
        unfit, count = count_unfit(sweep.folder), failed + missing
        lines.append(f"{count} of {len(numbered) + missing} runs failed; {_way_on(sweep.folder, count, unfit)}")
    for line in lines:
        errors.print(f"fedmrn: {line}", markup=False)
    return not lines


def _way_on(folder: Path, failed: int, unfit: int) -> str:
    """Return how to complete the failed runs of a sweep, of which some may not fit the runs in their folders."""
    again = f"repeat the command with resume=true {typed_override('hydra.sweep.dir', str(folder))}"
    if not unfit:
        return f"to complete them, {again}"
    whose = "their folders hold" if unfit == failed else f"the folders of {unfit} of them hold"
    others = "" if unfit == failed else f"; to complete the others, {again}"
    ways = "name another folder with hydra.sweep.dir=FOLDER, or set these back"
    return f"{whose} runs with other settings: {ways}{others}"

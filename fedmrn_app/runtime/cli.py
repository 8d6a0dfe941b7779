"""The `fedmrn` command: Hydra's command line for one simulated run or, with --multirun, for a sweep of runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import hydra

from fedmrn_app.config.build import find_conf
from fedmrn_app.config.compose import load_config, open_own_groups, quote_override
from fedmrn_app.config.sweep import Sweep, open_sweep, sweep_of
from fedmrn_app.environment import CONNECTION
from fedmrn_app.errors import FedMRNError
from fedmrn_app.report.tables import print_outcomes
from fedmrn_app.runtime.remote import take_on
from fedmrn_app.runtime.runner import console, errors, reasons, task
from fedmrn_app.runtime.sweeps import forget_outcomes, read_best, read_outcomes

_INFORMS = {"--help", "-h", "--hydra-help", "--version", "--info", "-i", "--cfg", "-c"}


def main() -> None:
    """Entry point of `fedmrn`: exits with 0 if every run completed, 1 if one failed, 2 on a wrong configuration."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # models and tasks of one's own
    sweep = None
    try:
        arguments, on = take_on(sys.argv[1:])
        sweep = None if _INFORMS & set(arguments) else _checked(arguments)
        sys.argv[1:] = open_own_groups(arguments)
        if sweep is not None:
            forget_outcomes(sweep.folder)
            sys.argv.append(quote_override("hydra.sweep.dir", str(sweep.folder)))
        if on is not None:
            os.environ[CONNECTION] = on
        hydra.main(version_base="1.3", config_path=str(find_conf()), config_name="config")(task)()
    except SystemExit as left:
        if sweep is not None and left.code:  # such as a launcher whose process died
            _tell(sweep)
        raise
    except FedMRNError as error:
        _print_error(error)
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print("interrupted; finished rounds are in the run's folder")
        sys.exit(130)
    sys.exit(1 if reasons or (sweep is not None and not _tell(sweep)) else 0)


def _checked(arguments: Sequence[str]) -> Sweep | None:
    """Check all runs that a command line asks for before the first one starts; the sweep, if they are one."""
    overrides = [word for word in arguments if not word.startswith("-")]
    if {"--multirun", "-m"} & set(arguments):
        sweep = open_sweep(overrides)
        sweep.check()
        return sweep
    load_config(tuple(overrides))
    if any(word.startswith("experiment=") for word in overrides) and (several := sweep_of(overrides)):
        console.print(f"one run; with --multirun the experiment is a sweep over {' '.join(several)}", markup=False)
    return None


def _tell(sweep: Sweep) -> bool:
    """Print what became of a sweep's runs; whether all of them completed."""
    numbered = read_outcomes(sweep.folder)
    outcomes = [outcome for _, outcome in numbered]
    if len(outcomes) > 1:
        print_outcomes(console, outcomes, [number for number, _ in numbered])
    if best := read_best(sweep.folder):
        console.print(best, markup=False)
    failed = [(number, run, result) for number, (run, result) in numbered if isinstance(result, str)]
    missing = 0 if sweep.searches else len(sweep.runs) - len(outcomes)
    for number, run, reason in failed:
        errors.print(f"fedmrn: run {number} failed ({run}): {reason}", markup=False)
    if missing:
        errors.print(f"fedmrn: {missing} runs ended without a word", markup=False)
    if failed or missing:
        again = quote_override("hydra.sweep.dir", str(sweep.folder))
        errors.print(
            f"fedmrn: {len(failed) + missing} of {len(outcomes) + missing} runs failed; the same command with "
            f"resume=true {again} goes on with them",
            markup=False,
        )
    return not failed and not missing


def _print_error(error: FedMRNError) -> None:
    errors.print(f"fedmrn: {error}", markup=False)


if __name__ == "__main__":
    main()

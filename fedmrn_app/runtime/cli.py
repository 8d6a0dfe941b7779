"""The `fedmrn` command: Hydra's command line for one simulated run or, with --multirun, for a sweep of runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import hydra

from fedmrn_app.config.build import find_conf
from fedmrn_app.config.compose import load_config, open_own_groups, quote_override
from fedmrn_app.config.sweep import Sweep, open_sweep, sweep_of
from fedmrn_app.environment import set_connection
from fedmrn_app.errors import FedMRNError
from fedmrn_app.report.tables import print_outcomes
from fedmrn_app.runtime.remote import take_on
from fedmrn_app.runtime.runner import console, errors, task
from fedmrn_app.runtime.sweeps import forget_outcomes, read_best, read_outcomes

_INFORMS = {"--help", "-h", "--hydra-help", "--version", "--info", "-i", "--cfg", "-c"}


def main() -> None:
    """Run the `fedmrn` command; exit with 0 if every run completed, 1 if one failed, 2 on a wrong configuration."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # for models and tasks of the user's own
    sweep = None
    try:
        arguments, on = take_on(sys.argv[1:])
        sweep = None if _INFORMS & set(arguments) else _checked(arguments)
        sys.argv[1:] = open_own_groups(arguments)
        if sweep is not None:
            forget_outcomes(sweep.folder)
            sys.argv.append(quote_override("hydra.sweep.dir", str(sweep.folder)))
        if on is not None:
            set_connection(on)
        hydra.main(version_base="1.3", config_path=str(find_conf()), config_name="config")(task)()
    except SystemExit as left:
        if sweep is not None and left.code:  # such as a launcher whose process died
            print_sweep(sweep)
        raise
    except FedMRNError as error:
        errors.print(f"fedmrn: {error}", markup=False)
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print("interrupted; finished rounds are in the run's folder")
        sys.exit(130)
    sys.exit(1 if sweep is not None and not print_sweep(sweep) else 0)


def _checked(arguments: Sequence[str]) -> Sweep | None:
    """Check all runs that a command line asks for before the first one starts; return the sweep, None for one run."""
    overrides = [word for word in arguments if not word.startswith("-")]
    if {"--multirun", "-m"} & set(arguments):
        sweep = open_sweep(overrides)
        sweep.check()
        return sweep
    load_config(tuple(overrides))
    if any(word.startswith("experiment=") for word in overrides) and (several := sweep_of(overrides)):
        console.print(f"one run; with --multirun the experiment is a sweep over {' '.join(several)}", markup=False)
    return None


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
        again = quote_override("hydra.sweep.dir", str(sweep.folder))
        lines.append(
            f"{failed + missing} of {len(numbered) + missing} runs failed; to complete them, repeat the command with "
            f"resume=true {again}"
        )
    for line in lines:
        errors.print(f"fedmrn: {line}", markup=False)
    return not lines


if __name__ == "__main__":
    main()

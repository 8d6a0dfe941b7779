"""Signals of schedulers: a round may end, a round that does not is left, and a second signal does not wait."""

import os
import signal
import time

import pytest

from fedmrn_app.system.stopping import Stopped, check_stop, stopping_at_once, stopping_gently


def receive(*numbers: signal.Signals, rounds: float, grace: float = 30.0) -> None:
    """Receive signals in a round of so many seconds."""
    with stopping_gently(grace):
        check_stop()
        for number in numbers:
            os.kill(os.getpid(), number)
        time.sleep(rounds)
        check_stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_stops_at_the_end_of_the_round(number: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Stopped) as stopped:
        receive(number, rounds=0.01)
    assert str(stopped.value) == number.name
    assert f"{number.name}: the run ends after this round" in capfd.readouterr().err
    assert signal.getsignal(number) is before
    check_stop()


def test_a_round_that_does_not_end_is_left() -> None:
    with pytest.raises(Stopped):
        receive(signal.SIGTERM, rounds=60, grace=0.02)


def test_a_second_signal_does_not_wait() -> None:
    with pytest.raises(Stopped):
        receive(signal.SIGTERM, signal.SIGTERM, rounds=60)


def test_a_run_that_ends_in_time_is_complete() -> None:
    with stopping_gently(0.02):
        os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.04)  # no alarm is left


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_run_elsewhere_is_stopped_at_once_and_a_second_signal_does_not_disturb(number: signal.Signals) -> None:
    ignored = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as in the background
    told = []

    def follow() -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
        except KeyboardInterrupt as stopped:
            os.kill(os.getpid(), number)  # while the run is stopped on the server
            told.append(str(stopped))
            raise

    with pytest.raises(Stopped), stopping_at_once():
        follow()
    assert told == [number.name]
    assert signal.getsignal(number) == signal.SIG_DFL
    signal.signal(signal.SIGHUP, ignored)


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as by nohup
    with stopping_at_once():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.signal(signal.SIGHUP, before) == signal.SIG_IGN

"""A process ends with its parent, whatever it waits for."""

import subprocess
import sys
import time

import psutil

CHILD = """
import signal, threading
from fedmrn_app.runtime.cleanup import end_with_parent
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
end_with_parent(0.5)
print("ready", flush=True)
threading.Event().wait()
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_process_ends_after_its_parent_and_not_before() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        time.sleep(3)
        assert child.is_running()
        parent.kill()
    child.wait(10)

"""What another app pays for `import fedmrn_app.plugin`: few modules, and none of the command's."""

import subprocess
import sys

import pytest

COMMAND = ("config", "data", "deploy", "flower", "report", "results", "runtime", "tasks")  # packages of the command
MOST = 60  # modules; without a limit an import in any of them may bring in a hundred more


@pytest.mark.slow
def test_the_plugin_loads_few_modules_and_none_of_the_command() -> None:
    code = "import sys, fedmrn_app.plugin; print(*(name for name in sys.modules if name.startswith('fedmrn_app')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if name.split(".")[1:2] and name.split(".")[1] in COMMAND]
    assert len(loaded) <= MOST


def test_the_plugin_loads_numba_with_the_first_update_that_it_codes() -> None:
    """Numba takes nine tenths of the memory and of the time of an import."""
    code = "import sys, fedmrn_app.plugin; print(*(name for name in ('numba', 'torch') if name in sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found == []

"""How tests of the wire formats check a refusal."""

from collections.abc import Callable

import pytest

from fedmrn_app.errors import PayloadError


def refusal(function: Callable[..., object], *arguments: object) -> str:
    """Return the code of the PayloadError that a call raises, whose message is one line."""
    with pytest.raises(PayloadError) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return caught.value.code

"""The body of a payload: the method's own bytes, and the form that they are in.

form 0   plain, always readable
form 1   coded with what both sides know; written only if it is shorter
form 2   coded in several lanes, for long bodies, see `wire/entropy.py`
form 3   with factors of matrices, see `wire/factors.py`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from fedmrn_app.errors import PayloadError

PLAIN, CODED, LANED, FACTORED = 0, 1, 2, 3

Coder = Literal["auto", "packed"]  # the shorter form, or always the plain form
CODERS: tuple[Coder, ...] = get_args(Coder)


@dataclass(frozen=True)
class Body:
    """Bytes in one of a method's forms."""

    data: bytes | memoryview
    form: int = PLAIN

    def __len__(self) -> int:
        return len(self.data)

    def must_be_plain(self) -> None:
        """Refuse every form but the plain one.

        Raises:
            PayloadError: the body is in another form.
        """
        if self.form != PLAIN:
            raise PayloadError(
                f"body is in form {self.form}, which its method does not have", code="form", value=self.form
            )

"""The body of a payload: the method's own bytes, and whether they are coded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from fedmrn_app.errors import PayloadError

PLAIN, CODED = 0, 1  # the form of a body, a byte of the header

Coder = Literal["auto", "packed"]  # whichever form is smaller, or always the plain one
CODERS: tuple[Coder, ...] = get_args(Coder)


@dataclass(frozen=True)
class Body:
    """Bytes in one of a method's two forms."""

    data: bytes | memoryview
    form: int = PLAIN

    def __len__(self) -> int:
        return len(self.data)

    def must_be_plain(self) -> None:
        """Refuse every form but the plain one.

        Raises:
            PayloadError: it is coded, or in a form that there is not.
        """
        if self.form != PLAIN:
            raise PayloadError(f"body is in form {self.form}, which its method does not have")

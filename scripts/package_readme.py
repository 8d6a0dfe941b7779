"""The README as package indexes show it, where the files beside it do not exist.

`address` in pyproject.toml, under `[tool.hatch.metadata.hooks.custom]`, is that of the published repository. Links to
files become links to it, and it becomes the project's URL. Without an address, links to files become their text, and
pictures are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


class PackageReadme(MetadataHookInterface):
    """Sets `readme` and `urls` when the package is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the two fields; see the module."""
        address = str(self.config.get("address", "")).rstrip("/")
        text = outside_repository(Path(self.root, "README.md").read_text(encoding="utf-8"), address)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = {"Repository": address, "Changelog": f"{address}/blob/main/CHANGELOG.md"} if address else {}


def outside_repository(text: str, address: str) -> str:
    """Return Markdown whose links to files begin with the address, or are plain text where it is empty.

    Args:
        text: Markdown with relative links.
        address: of the repository, as `https://github.com/OWNER/NAME`, or "".
    """

    def replaced(link: re.Match[str]) -> str:
        picture, label, path = link.groups()
        if address:
            return f"{picture}[{label}]({address}/{'raw' if picture else 'blob'}/main/{path})"
        return "" if picture else label

    return _LINK.sub(replaced, text)

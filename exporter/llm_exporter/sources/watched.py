"""Tells whether a file has been rotated, without reading it.

Called by whatever keeps something made from files: TLS contexts, credentials, the web configuration. A few microseconds per file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

Stamp = tuple[int, int, int, int] | None


def stamp(path: str | Path) -> Stamp:
    """Modification time (ns), size, inode and device of what the path leads to now; None where it leads nowhere.

    The inode catches the way in which Kubernetes rotates secrets: a symbolic link is moved, times may stay equal.
    """
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)


def stamps(paths: Iterable[str | Path]) -> tuple[Stamp, ...]:
    """One stamp per path."""
    return tuple(stamp(path) for path in paths)

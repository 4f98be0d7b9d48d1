"""Every error that this program raises on purpose.

```
LlmExporterError
 ├─ ConfigError        the user's file or flag is wrong; the message names place, value and remedy
 ├─ UsageError         a command was called with arguments that cannot work together
 └─ SourceError        a source gave nothing usable; carries a `reason` from a closed set
     ├─ FetchError     the answer did not come, or came with the wrong status, size or host
     ├─ ParseError     the answer is no valid exposition
     └─ GpuUnavailable NVML cannot be used now
```
Anything else that is raised is a bug, is counted as such, and never disturbs another target.
"""

from __future__ import annotations


class LlmExporterError(Exception):
    """Root of all errors raised on purpose."""


class ConfigError(LlmExporterError):
    """The configuration is wrong. The text names file, line, key, value and remedy, one problem a line."""


class UsageError(LlmExporterError):
    """A command was called in a way that cannot work."""


class SourceError(LlmExporterError):
    """A source gave nothing usable.

    Args:
        reason: a short word from a closed set; it becomes the label `reason`.
        detail: a sentence for people; never holds a secret.
        hint: what the operator can do about it, empty where nothing is known.
    """

    def __init__(self, reason: str, detail: str = "", *, hint: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.hint = hint


class FetchError(SourceError):
    """No usable HTTP answer (refused, timeout, connection_closed, dns, tls, tls_verify, http_NNN, redirect, too_large, truncated)."""


class ParseError(SourceError):
    """The body is not a valid exposition (not_metrics, parse)."""


class GpuUnavailable(SourceError):
    """NVML cannot be used now (library_not_found, driver_not_loaded, lib_rm_version_mismatch, no_permission, no_devices, …)."""

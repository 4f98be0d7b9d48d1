"""What an error of NVML means for the reader: the field, the device, or the whole session.

NVML's codes are part of its binary interface, so numbers serve where a binding lacks the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from llm_exporter.errors import SourceError

# code → reason, as `llm_exporter_source_down_reason` shows it: NVML's own name in lower case, but for gpu_lost.
REASONS: Mapping[int, str] = {
    1: "uninitialized",
    2: "invalid_argument",
    3: "not_supported",
    4: "no_permission",
    6: "not_found",
    7: "insufficient_size",
    8: "insufficient_power",
    9: "driver_not_loaded",
    10: "timeout",
    11: "irq_issue",
    12: "library_not_found",
    13: "function_not_found",
    14: "corrupted_inforom",
    15: "gpu_lost",
    16: "reset_required",
    17: "operating_system",
    18: "lib_rm_version_mismatch",
    19: "in_use",
    20: "memory",
    21: "no_data",
    22: "vgpu_ecc_not_supported",
    23: "insufficient_resources",
    24: "freq_not_supported",
    25: "argument_version_mismatch",
    26: "deprecated",
    27: "not_ready",
    28: "gpu_not_found",
    29: "invalid_state",
    999: "unknown",
}

HINTS: Mapping[str, str] = {
    "library_not_found": "libnvidia-ml.so.1 is not here: install the driver, or start the container with --gpus all",
    "driver_not_loaded": "the NVIDIA kernel module is not loaded: check nvidia-smi on the host",
    "lib_rm_version_mismatch": "the driver was updated under a running kernel module: reboot, or reload the module",
    "no_permission": "run as a user that may open /dev/nvidiactl",
    "no_devices": "NVML sees no GPU: check the device plugin, NVIDIA_VISIBLE_DEVICES and /dev/nvidia*",
    "gpu_lost": "the GPU fell off the bus: look for Xid 79 in the kernel log; it needs a reset or a reboot",
    "unknown": "NVML lost its devices (in a container: a daemon-reload on the host takes them away); restart the container if this stays",
    "other_pid_namespace": "NVML names processes of another PID namespace: start the exporter with pid: host",
    "not_supported": "this GPU or driver does not offer it",
    "timeout": "a call into the driver hangs: look at the kernel log",
}


class Scope(Enum):
    """What an error takes away."""

    FIELD = "field"  # for good: not asked again before the next initialisation
    MOMENT = "moment"  # this time only
    DEVICE = "device"
    SESSION = "session"


_FIELD = {2, 3, 4, 13, 22, 24, 25, 26}
_DEVICE = {15, 16, 28}
_SESSION = {1, 9, 12, 18}


class NvmlError(SourceError):
    """An error of one call, classified.

    Args:
        reason: see REASONS.
        scope: what it takes away.
    """

    def __init__(self, reason: str, scope: Scope, detail: str = "") -> None:
        super().__init__(reason, detail, hint=HINTS.get(reason, ""))
        self.scope = scope


def classified(error: Exception) -> NvmlError:
    """The meaning of whatever a call into the binding raised.

    An error without an NVML code comes from the binding itself (a function that it or the library lacks, an answer
    that it cannot decode): the field is then not supported here.
    """
    code = getattr(error, "value", None)
    if isinstance(error, NvmlError):
        return error
    if not isinstance(code, int):
        return NvmlError("not_supported", Scope.FIELD, f"{type(error).__name__}: {error}")
    reason = REASONS.get(code, f"error_{code}")
    if code in _FIELD:
        scope = Scope.FIELD
    elif code in _DEVICE:
        scope = Scope.DEVICE
    elif code in _SESSION:
        scope = Scope.SESSION
    else:
        scope = Scope.MOMENT
    return NvmlError(reason, scope)

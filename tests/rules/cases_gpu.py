"""GPUs, and the exporter itself."""

from __future__ import annotations

from rules.series import AT_ONCE, FLAG, JOB, NO_COUNTER, RESET, TARGET, Case, Cases, Number, counter, gauge, j, t

GPU = {**JOB, "gpu": "0"}
BOTH = {**TARGET, "gpu": "0"}
RELATION = {t("llm_gpu_target", gpu="0"): gauge((60, 1))}
Step = tuple[Number, Number | None]

STARVED = Cases(
    "LLMGPUStarvedByCPU",
    (
        Case("fires", {t("llm_gpu_starved"): gauge((5, 0), (15, 1))}, 11, (TARGET,)),
        Case("too_short", {t("llm_gpu_starved"): gauge((5, 0), (4, 1), (10, 0))}, 8.75),
        Case("no_data", {}, 11),
        Case("target_gone", {t("llm_gpu_starved"): gauge((5, 1), (15, None))}, 11),
        Case("idle", {t("llm_gpu_starved"): gauge((20, 0))}, 11),
    ),
    {"just_below": FLAG, "counter_reset": NO_COUNTER},
)


def throttled(*steps: Step | str, reason: str = "hw_thermal_slowdown") -> dict[str, str]:
    scaled = [step if isinstance(step, str) else (step[0], None if step[1] is None else float(step[1]) * 60) for step in steps]
    return {j("llm_gpu_throttled_seconds_total", gpu="0", reason=reason): counter(*scaled)}


THROTTLED = Cases(
    "LLMGPUThrottled",
    (
        Case("fires", {**RELATION, **throttled((40, 0.11))}, 30, (BOTH,)),
        Case("fires", throttled((40, 0.11)), 30, (GPU,), about="a GPU without a target"),
        Case(
            "fires",
            {**RELATION, j("llm_gpu_throttle_active", gpu="0", reason="hw_slowdown"): gauge((40, 1))},
            30,
            (BOTH,),
            about="a reason that the driver does not count",
        ),
        Case("fires", {**RELATION, t("llm_gpu_target", gpu="0").replace("chat", "docs"): gauge((60, 1)), **throttled((40, 0.11))}, 30,
             (BOTH, {**BOTH, "target": "docs"}), about="two targets share it"),
        Case("just_below", {**RELATION, **throttled((40, 0.09))}, 30),
        Case("too_short", {**RELATION, **throttled((20, 0), (10, 0.11), (20, 0))}, 30.5),
        Case("no_data", RELATION, 30),
        Case("target_gone", {t("llm_gpu_target", gpu="0"): gauge((15, 1), (40, None)), **throttled((50, 0.11))}, 40, (GPU,)),
        Case("counter_reset", {**RELATION, **throttled((20, 0.5), (0.25, None), RESET, (30, 0))}, 35),
        Case("idle", {**RELATION, **throttled((40, 0.9), reason="sw_power_cap"), **throttled((40, 0))}, 30),
    ),
)  # fmt: skip


def xid(at_minute: Number, *, length: Number = 50) -> dict[str, str]:
    seconds = int(float(at_minute) * 60)
    return {j("llm_gpu_xid_last_timestamp_seconds", gpu="0", xid="79"): gauge((at_minute, None), (length, seconds))}


XID = Cases(
    "LLMGPUXidError",
    (
        Case("fires", {**RELATION, **xid(10)}, 11, (BOTH,)),
        Case("fires", {**RELATION, **xid(10)}, 24, (BOTH,), about="14 minutes ago"),
        Case("fires", xid(10), 11, (GPU,)),
        Case(
            "fires",
            {**RELATION, **xid(10), **{key.replace("79", "31"): value for key, value in xid(12).items()}},
            13,
            (BOTH,),
            about="two numbers, one alert",
        ),
        Case("just_below", {**RELATION, **xid(10)}, 26, about="16 minutes ago"),
        Case("no_data", RELATION, 11),
        Case("target_gone", {**RELATION, **xid(10, length=1)}, 13, about="the exporter went"),
        Case("idle", RELATION, 11),
    ),
    {"too_short": AT_ONCE, "counter_reset": NO_COUNTER},
)


def up(value: Number | None, gpu: str = "0") -> dict[str, str]:
    return {j("llm_gpu_up", gpu=gpu): gauge((5, 1), (30, value))}


EXPECTED = {j("llm_gpu_expected_devices"): gauge((40, 2))}
LOST = Cases(
    "LLMGPULost",
    (
        Case("fires", {t("llm_gpu_target", gpu="0"): gauge((5, 1), (40, None)), **up(0)}, 10, (BOTH,), about="its target is remembered"),
        Case("fires", up(0), 10, (GPU,)),
        Case("fires", {**EXPECTED, **up(1)}, 10, (JOB,), about="one of two was never there"),
        Case("fires", EXPECTED, 10, (JOB,), about="none of two is there"),
        Case("just_below", {**EXPECTED, **up(1), **up(1, "1")}, 10),
        Case("just_below", {**EXPECTED, **up(1), **up(1, "0.0"), **up(1, "1")}, 10, about="a MIG device is none"),
        Case("fires", {**EXPECTED, **up(1), **up(1, "0.0")}, 10, (JOB,), about="a MIG device does not replace one"),
        Case("too_short", {j("llm_gpu_up", gpu="0"): gauge((5, 1), (0.75, 0), (10, 1))}, 5.5),
        Case("no_data", {}, 10),
        Case("target_gone", up(None), 10),
        Case("idle", {**RELATION, **up(1)}, 10),
    ),
    {"counter_reset": NO_COUNTER},
)


def foreign(mebibytes: Number, *, length: Number = 30, target: str = "") -> dict[str, str]:
    name = j("llm_gpu_process_memory_bytes", gpu="0", target=target)
    return {name: gauge((5, None), (length, int(float(mebibytes) * 2**20)))}


FOREIGN = Cases(
    "LLMGPUForeignProcess",
    (
        Case("fires", {**RELATION, **foreign(550)}, 15, (BOTH,)),
        Case("just_below", {**RELATION, **foreign(470)}, 15),
        Case("just_below", foreign(40_000), 15, about="on a GPU of no target"),
        Case("too_short", {**RELATION, **foreign(550, length=3)}, 7.75),
        Case("no_data", RELATION, 15),
        Case("target_gone", {t("llm_gpu_target", gpu="0"): gauge((5, 1), (40, None)), **foreign(550)}, 15),
        Case("idle", {**RELATION, **foreign(70_000, target="chat")}, 15),
    ),
    {"counter_reset": NO_COUNTER},
)

EXPORTER_DOWN = Cases(
    "LLMExporterDown",
    (
        Case("fires", {j("up"): gauge((5, 1), (10, 0))}, 8, (JOB,)),
        Case("no_data", {}, 5, ({"job": "llm-exporter"},), about="the job is not there at all"),
        Case("target_gone", {j("up"): gauge((5, 1), (15, None))}, 9, ({"job": "llm-exporter"},)),
        Case("too_short", {j("up"): gauge((5, 1), (1.5, 0), (10, 1))}, 6.25),
        Case("too_short", {j("up"): gauge((5, 1), (1.5, None), (10, 1))}, 7),
        Case("idle", {j("up"): gauge((20, 1))}, 8),
    ),
    {"just_below": FLAG, "counter_reset": NO_COUNTER},
)

WATCHED = {j("up"): gauge((90, 1)), t("llm_target_up").replace("chat", "docs"): gauge((90, 1))}
TARGETS_MISSING = Cases(
    "LLMTargetsMissing",
    (
        Case("fires", {**WATCHED, t("llm_target_up"): gauge((10, 1), (80, None))}, 14, (TARGET,)),
        Case("fires", {**WATCHED, t("llm_target_up"): gauge((10, 0), (80, None))}, 14, (TARGET,), about="it was down when it went"),
        Case("just_below", {**WATCHED, t("llm_target_up"): gauge((10, 1), (80, None))}, 72, about="more than an hour ago"),
        Case(
            "just_below",
            {**WATCHED, t("llm_target_up"): gauge((10, 1), (80, None)), j("llm_exporter_source_up", source="discovery"): gauge((90, 1))},
            14,
            about="an exporter that discovers targets",
        ),
        Case("too_short", {**WATCHED, t("llm_target_up"): gauge((10, 1), (2, None), (20, 1))}, 11.75),
        Case("no_data", {j("up"): gauge((90, 1))}, 14),
        Case(
            "target_gone",
            {j("up"): gauge((10, 1), (80, 0)), t("llm_target_up"): gauge((10, 1), (80, None))},
            20,
            about="the exporter is down: LLMExporterDown speaks",
        ),
        Case("idle", {**WATCHED, t("llm_target_up"): gauge((90, 1))}, 14),
    ),
    {"counter_reset": NO_COUNTER},
)

_RELOADED = "llm_exporter_config_last_reload_successful"
RELOAD = Cases(
    "LLMExporterConfigReloadFailed",
    (
        Case("fires", {j(_RELOADED): gauge((5, 1), (15, 0))}, 11, (JOB,)),
        Case("too_short", {j(_RELOADED): gauge((5, 1), (4, 0), (10, 1))}, 8.75),
        Case("no_data", {}, 11),
        Case("target_gone", {j(_RELOADED): gauge((5, 0), (15, None))}, 11),
        Case("idle", {j(_RELOADED): gauge((20, 1))}, 11),
    ),
    {"just_below": FLAG, "counter_reset": NO_COUNTER},
)


def source(*steps: Step, reason: str = "", name: str = "nvml") -> dict[str, str]:
    found = {j("llm_exporter_source_up", source=name): gauge(*steps)}
    return {**found, j("llm_exporter_source_down_reason", source=name, reason=reason): gauge((5, None), (30, 1))} if reason else found


NVML = {**JOB, "source": "nvml"}
SOURCE_DOWN = Cases(
    "LLMExporterSourceDown",
    (
        Case("fires", source((5, 1), (20, 0), reason="gpu_lost"), 18, (NVML,)),
        Case("fires", source((25, 0), reason="no_permission"), 18, (NVML,), about="never worked, and should"),
        Case("fires", source((5, 1), (20, 0), reason="driver_not_loaded"), 18, (NVML,), about="worked within the day"),
        Case("fires", source((5, 1), (20, 0)), 18, (NVML,), about="no reason given"),
        Case("just_below", source((25, 0), reason="library_not_found"), 18, about="a host without GPUs"),
        Case("just_below", source((25, 0), reason="disabled"), 18),
        Case("too_short", source((5, 1), (9, 0), (10, 1)), 13.75),
        Case("no_data", {}, 18),
        Case("target_gone", source((5, 1), (5, 0), (20, None), reason="gpu_lost"), 18),
        Case("idle", source((25, 1)), 18),
    ),
    {"counter_reset": NO_COUNTER},
)

_REVIEW, _HOUR = "llm_report_last_success_timestamp_seconds", 3600
REVIEW = Cases(
    "LLMCapacityReviewMissing",
    (
        Case("fires", {j(_REVIEW): gauge((60 * 200, 1), step=_HOUR)}, 60 * 194, (JOB,), _HOUR),
        Case("just_below", {j(_REVIEW): gauge((60 * 200, 1), step=_HOUR)}, 60 * 191, (), _HOUR),
        Case("too_short", {j(_REVIEW): gauge((60 * 200, 1), step=_HOUR)}, 60 * 193, (), _HOUR),
        Case("no_data", {}, 60 * 194, (), _HOUR),
        Case("target_gone", {j(_REVIEW): gauge((60 * 100, 1), step=_HOUR)}, 60 * 194, (), _HOUR),
        Case("idle", {j(_REVIEW): gauge((60 * 200, 0), step=_HOUR)}, 60 * 194, (), _HOUR, "no review yet"),
    ),
    {"counter_reset": NO_COUNTER},
)

CASES = (STARVED, THROTTLED, XID, LOST, FOREIGN, EXPORTER_DOWN, TARGETS_MISSING, RELOAD, SOURCE_DOWN, REVIEW)

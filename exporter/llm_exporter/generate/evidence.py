"""What alerts quote when they fire: the answers to a few queries, in words."""

from __future__ import annotations

from llm_exporter.generate.alert import Evidence
from llm_exporter.generate.settings import RuleSettings

_MODEL = ("job", "instance", "target", "model")
_GPU = ("job", "instance", "gpu")
_LABEL = '{{{{ . | label "{}" }}}}'
_PERCENT = "{{ . | value | humanizePercentage }}"
_SECONDS = "{{ . | value | humanizeDuration }}"

VERDICT = Evidence("limited by", "llm_bottleneck_verdict", where=" == 1", show=_LABEL.format("cause"))
DOWN_REASON = Evidence("reason", "llm_target_down_reason", where=" == 1", show=_LABEL.format("reason"))
STATE = Evidence("engine state", "llm_engine_state", where=" == 1", show=_LABEL.format("state"))
STALLED = Evidence("stalled", "llm_engine_stalled", show="{{ if eq (. | value) 1.0 }}yes{{ else }}no{{ end }}")
RUNNING = Evidence("running", "llm_requests_running", _MODEL)
WAITING = Evidence("waiting", "llm_requests_waiting", _MODEL)
_EACH = '{{ . | label "model" }} {{ . | value | humanize }}'
RUNNING_BY_MODEL = Evidence("running", "llm_requests_running", show=_EACH)
WAITING_BY_MODEL = Evidence("waiting", "llm_requests_waiting", show=_EACH)
KV_USAGE = Evidence("KV cache used", "llm_kv_cache_usage_ratio", _MODEL, show=_PERCENT)
SATURATED = Evidence(
    "P99 above the highest bucket", "llm_time_to_first_token_quantile_saturated", _MODEL, 'q="0.99",window="5m"', " == 1", "yes", "no"
)
BUCKET = Evidence("error by bucket width", "llm_time_to_first_token_quantile_error_seconds", _MODEL, 'q="0.99",window="5m"', show=_SECONDS)
EDGE = Evidence("threshold as measured", "llm_slo_effective_threshold_seconds", (*_MODEL, "slo"), show=_SECONDS)
ASKED_EDGE = Evidence("as configured", "llm_slo_threshold_seconds", (*_MODEL, "slo"), show=_SECONDS)
PROBE_RESULT = Evidence(
    "last result", "llm_probe_last_result", ("job", "instance", "target", "module"), where=" == 1", show=_LABEL.format("result")
)
PROBES = Evidence(
    "probes",
    "llm_probe_success",
    show='{{ . | label "module" }} {{ if eq (. | value) 1.0 }}fine{{ else }}failing{{ end }}',
    otherwise="none configured",
)
MISSING = Evidence(
    "signals", "llm_signal_status", ("job", "instance", "target", "status"), 'window=~"|5m"', " == 1", _LABEL.format("signal")
)
VERSION = Evidence("engine", "llm_target_info", show='{{ . | label "engine" }} {{ . | label "engine_version" }}')
GPU_NAME = Evidence("GPU", "llm_gpu_info", _GPU, show='{{ . | label "name" }} {{ . | label "uuid" }} driver {{ . | label "driver" }}')
THROTTLE_REASONS = Evidence(
    "reasons now", "llm_gpu_throttle_active", _GPU, where=" == 1", show=_LABEL.format("reason"), otherwise="none at this moment"
)
TEMPERATURE = Evidence("temperature", "llm_gpu_temperature_celsius", _GPU, show='{{ . | label "sensor" }} {{ . | value | humanize }} °C')
POWER = Evidence("power", "llm_gpu_power_watts", _GPU, show="{{ . | value | humanize }} W")
XIDS = Evidence("XID", "llm_gpu_xid_last_timestamp_seconds", _GPU, show=_LABEL.format("xid"))
STARVED = Evidence("starved in the last 5 minutes", "llm_gpu_starved_ratio", matchers='window="5m"', show=_PERCENT)
STARVED_WHY = Evidence(
    "because",
    "llm_bottleneck_evidence_ratio",
    matchers='cause="host_starved"',
    show='{{ . | label "evidence" }} {{ . | value | humanizePercentage }}',
)
SOURCE_REASON = Evidence(
    "reason", "llm_exporter_source_down_reason", ("job", "instance", "source"), where=" == 1", show=_LABEL.format("reason")
)
LOST_GPUS = Evidence(
    "GPUs lost on this host", "llm_gpu_up", ("job", "instance"), where=" == 0", show=_LABEL.format("gpu"), otherwise="none known"
)


def told(settings: RuleSettings, evidence: Evidence) -> str:
    """The template of one piece of evidence."""
    conditions = [f"{label}=%q" for label in evidence.on] + ([evidence.matchers] if evidence.matchers else [])
    query = f"last_over_time({evidence.metric}{{{','.join(conditions)}}}[{settings.shortest}]){evidence.where}"
    arguments = " ".join(f"$labels.{label}" for label in evidence.on)
    return (
        f"{evidence.says}: {{{{ with printf `{query}` {arguments} | query }}}}"
        f"{{{{ range $i, $e := . }}}}{{{{ if $i }}}}, {{{{ end }}}}{evidence.show}{{{{ end }}}}"
        f"{{{{ else }}}}{evidence.otherwise}{{{{ end }}}}"
    )

"""Alerts about GPUs and the host that feeds them."""

from __future__ import annotations

from llm_exporter.generate import evidence as say
from llm_exporter.generate.alert import Alert, Cause, Flags, Severity, Subject
from llm_exporter.generate.boards import GPU, TARGET
from llm_exporter.generate.fragments import last, of_gpu
from llm_exporter.generate.promql import Matcher, either, equals, lines, one_of, over, selector
from llm_exporter.generate.settings import RuleSettings
from llm_exporter.generate.thresholds import FOREIGN_MEMORY, THROTTLED, XID_AGE

_LABELS = ("target", "gpu")
# A power cap is how a busy GPU looks, and the other reasons are somebody's wish; heat, brakes and slowdowns are not.
HARMFUL = ("hw_power_brake_slowdown", "hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown")
_NOT_MIG = Matcher("gpu", "!~", r".*\..*")
_RELATION = 3600  # seconds for which the target of a lost GPU is remembered

STARVED = Alert(
    name="LLMGPUStarvedByCPU",
    severity=Severity.TICKET,
    subject=Subject.GPU,
    labels=("target",),
    summary="The GPUs of {{ $labels.target }} wait for the CPU.",
    value="the GPU had nothing to do although requests were there",
    evidence=(say.STARVED, say.STARVED_WHY, say.VERDICT),
    meaning="Users wait for a GPU that is idle part of the time. A bigger GPU would not help.",
    confirm=(
        "Open the link: active share of the GPU with gaps, while requests run and wait.",
        "Look at the hottest thread: at 1.0 it is the limit.",
    ),
    causes=(
        Cause("A CPU limit (cgroup quota) is too low.", GPU, "CPU pressure and throttling"),
        Cause("Too few or too busy CPUs: threads are ready and get no core.", GPU, "Run delay"),
        Cause("The scheduler's one Python thread is the limit.", GPU, "Hottest thread"),
        Cause("Kernels are launched one by one (no CUDA graphs).", GPU, "Activity"),
    ),
    action="Raise or remove the CPU limit first; then look at the hottest thread.",
    flags=Flags(
        vllm=(
            "keep --async-scheduling",
            "drop --enforce-eager; --max-cudagraph-capture-size for larger batches",
            "--stream-interval higher",
            "--numa-bind",
        ),
        sglang=(
            "remove --disable-overlap-schedule",
            "drop --cuda-graph-backend-decode disabled; --cuda-graph-max-bs-decode higher",
            "--stream-interval or --num-continuous-decode-steps higher",
            "--numa-node",
        ),
    ),
    board=GPU,
    hold=300,
    expression=lambda settings: f"{last(settings, 'llm_gpu_starved')} == 1",
    blind="Needs the exporter on the server's host, with its GPUs. The exporter decides slowly on purpose (three decisions on, four off).",
)


def _throttled(settings: RuleSettings) -> str:
    reasons, window = one_of("reason", HARMFUL), settings.window(600)
    counted = over("rate", selector("llm_gpu_throttled_seconds_total", reasons), window)
    seen = over("avg_over_time", selector("llm_gpu_throttle_active", reasons), window)
    return of_gpu(settings, f"max without (reason) ({counted} or {seen}) > {settings.limit(THROTTLED)}")


THROTTLED_GPU = Alert(
    name="LLMGPUThrottled",
    severity=Severity.TICKET,
    subject=Subject.GPU,
    labels=_LABELS,
    summary="GPU {{ $labels.gpu }}{{ if $labels.target }} of {{ $labels.target }}{{ end }} is slowed down by heat or a brake.",
    value=f"{{{{ $value | humanizePercentage }}}} of the last 10 minutes, limit {THROTTLED.text}",
    evidence=(say.THROTTLE_REASONS, say.TEMPERATURE, say.POWER, say.GPU_NAME),
    meaning="Everything takes longer on this GPU, and on all that wait for it in the same server.",
    confirm=("Open the link: clocks fall while the reason is active.", "`nvidia-smi -q -d PERFORMANCE,TEMPERATURE -i GPU`."),
    causes=(
        Cause("Heat: airflow, a failed fan, a hot neighbour.", GPU, "Temperature"),
        Cause("Power brake: the power supply or the rack's limit.", GPU, "Power"),
        Cause("The board protects itself (hw_slowdown).", GPU, "Throttling"),
    ),
    action="Hand it to whoever looks after the hardware; move load to other hosts until then.",
    board=GPU,
    hold=300,
    expression=_throttled,
    thresholds=(THROTTLED,),
    blind="A software power cap is normal under full load and opens nothing.",
)


def _xid(settings: RuleSettings) -> str:
    newest = f"max without (xid) ({last(settings, 'llm_gpu_xid_last_timestamp_seconds')})"
    return of_gpu(settings, f"time() - {newest} < {settings.age(XID_AGE)}", _RELATION)


XID_ERROR = Alert(
    name="LLMGPUXidError",
    severity=Severity.TICKET,
    subject=Subject.HARDWARE,
    labels=_LABELS,
    summary="GPU {{ $labels.gpu }}{{ if $labels.target }} of {{ $labels.target }}{{ end }} reported an error (XID).",
    value="{{ $value | humanizeDuration }} ago",
    evidence=(say.XIDS, say.GPU_NAME),
    meaning="The driver met an error. Some kill the process, some the GPU; answers under way are lost.",
    confirm=(
        "`dmesg | grep -i xid` on the host.",
        "NVIDIA's list of XID errors tells a program's fault (13, 31, 43, 45) from the hardware's (48, 63, 64, 74, 79, 94, 95).",
    ),
    causes=(
        Cause("A kernel's fault: 13, 31, 43, 45. Look at engine and version.", TARGET, "Engine state"),
        Cause("Memory errors: 48, 63, 64, 94, 95.", GPU, "ECC errors and remapped rows"),
        Cause("NVLink: 74. The bus: 79.", GPU, "XID errors"),
    ),
    action="Hardware numbers: drain the host, reset the GPU, have it replaced if they return. "
    "Program numbers: keep the log, report it upstream.",
    board=GPU,
    expression=_xid,
    thresholds=(XID_AGE,),
    blind="Events before the exporter's start.",
)


def _lost(settings: RuleSettings) -> str:
    gone = of_gpu(settings, f"{last(settings, 'llm_gpu_up')} == 0", _RELATION)
    there, expected = last(settings, "llm_gpu_up", _NOT_MIG), last(settings, "llm_gpu_expected_devices")
    return either(gone, f"{expected} unless (count without (gpu) ({there}) >= {expected})")


GPU_LOST = Alert(
    name="LLMGPULost",
    severity=Severity.TICKET,
    subject=Subject.HARDWARE,
    labels=_LABELS,
    summary="{{ if $labels.gpu }}GPU {{ $labels.gpu }}{{ if $labels.target }} of {{ $labels.target }}{{ end }} is lost."
    "{{ else }}{{ $labels.instance }} has fewer GPUs than `gpu.expected_count` says.{{ end }}",
    value="{{ if $labels.gpu }}llm_gpu_up 0{{ else }}expected {{ $value }}{{ end }}",
    evidence=(say.GPU_NAME, say.XIDS),
    meaning="A server on this GPU is dead or about to be; one that starts next finds too few GPUs.",
    confirm=("`nvidia-smi` on the host.", "`dmesg | grep -i -e xid -e 'fallen off'`."),
    causes=(
        Cause("The GPU fell off the bus (XID 79).", GPU, "XID errors"),
        Cause("It was taken away: reset, MIG, another driver or container.", GPU, "GPUs"),
    ),
    action="Drain the host and restart it; have the GPU replaced if it happens again.",
    board=GPU,
    hold=60,
    expression=_lost,
    blind="A GPU that was never seen, unless `gpu.expected_count` is set.",
)


def _foreign(settings: RuleSettings) -> str:
    largest = f"max without (target) ({last(settings, 'llm_gpu_process_memory_bytes', equals('target', ''))})"
    return lines(
        f"{last(settings, 'llm_gpu_target')} * on (job, instance, gpu) group_left ()",
        f"({largest} > {settings.limit(FOREIGN_MEMORY)})",
    )


FOREIGN_PROCESS = Alert(
    name="LLMGPUForeignProcess",
    severity=Severity.TICKET,
    subject=Subject.GPU,
    labels=_LABELS,
    summary="A process that belongs to no target uses GPU {{ $labels.gpu }} of {{ $labels.target }}.",
    value=f"{{{{ $value | humanize1024 }}}}B, limit {FOREIGN_MEMORY.text}",
    evidence=(say.VERDICT, say.GPU_NAME),
    meaning="It takes memory from the KV cache and time from every kernel: latency gets worse and stranger.",
    confirm=("`nvidia-smi` on the host lists the processes.",),
    causes=(
        Cause("A second server, a notebook or a test on the same GPU.", GPU, "Memory by process"),
        Cause("What is left of a server that crashed.", GPU, "Memory by process"),
        Cause("A server that nobody added to `targets`, or whose processes are not found (`process:`).", GPU, "Memory by process"),
    ),
    action="Find its owner; end it, move it, or add it to `targets`.",
    board=GPU,
    hold=300,
    expression=_foreign,
    thresholds=(FOREIGN_MEMORY,),
    blind="Processes in other PID namespaces: run the exporter with the host's (`pid: host`).",
)

ALERTS: tuple[Alert, ...] = (STARVED, THROTTLED_GPU, XID_ERROR, GPU_LOST, FOREIGN_PROCESS)

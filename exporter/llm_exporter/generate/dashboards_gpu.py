"""GPUs and the host that feeds them: work, memory, heat, errors, and the CPU side of starvation.

GPU panels follow the variables exporter and gpu; host panels follow target. Which GPU serves which target says the table on top.
"""

from __future__ import annotations

from llm_exporter.generate.boards import GPU, TARGET
from llm_exporter.generate.dashboards_model import BYTES, RATIO, SECONDS, Kind, Look, Needs, Panel, Query, Row, Sheet, unit_of
from llm_exporter.generate.dashboards_parts import GPUS, INSTANCE, JOB, NO_YES, TARGETS, Selection, now, per
from llm_exporter.generate.promql import pattern
from llm_exporter.generate.thresholds import FOREIGN_MEMORY, THROTTLED, XID_AGE
from llm_exporter.readings import Unit

_G = Selection(("job", "instance", "gpu"))
_H = Selection(("job", "instance", "target"))
_BOTH = Selection(("job", "instance", "gpu", "target"))
_GPU = "GPU {{gpu}} ({{instance}})"
_TARGET = "{{target}} ({{instance}})"
# A power cap is how a GPU under full load looks; heat and brakes are not.
_HARMFUL = pattern("reason", "hw_slowdown|.*thermal.*|.*brake.*")


def _line(title: str, metric: str, unit: Unit, means: str, do: str, **more: object) -> Panel:
    """A panel of one gauge per GPU."""
    return _panel(title, (Query(_G.of(metric), _GPU),), unit_of(unit), means, do, **more)


def _panel(title: str, queries: tuple[Query, ...], unit: str, means: str, do: str, **more: object) -> Panel:
    settings = {"kind": Kind.TIME_SERIES, "needs": Needs.GPU, "least": 0, **more}
    return Panel(title=title, queries=queries, unit=unit, means=means, do=do, **settings)  # type: ignore[arg-type]


_HARDWARE = Row(
    title="Devices",
    panels=(
        Panel(
            title="GPUs",
            kind=Kind.TABLE,
            queries=(
                now(f"max by (job, instance, gpu, uuid, name, driver) ({_G.of('llm_gpu_info')})"),
                now(per(("gpu",), _G.of("llm_gpu_up"), "max"), "Up"),
                now(per(("gpu",), _G.of("llm_gpu_memory_size_bytes"), "max"), "Memory"),
            ),
            columns=("instance", "gpu", "name", "uuid", "driver"),
            units=(("Memory", BYTES),),
            means="Every GPU that was seen. A lost one stays here with Up 0 and loses all else.",
            do="Up 0: the GPU fell off the bus. Drain the host; a reset or a power cycle brings it back, or it is broken.",
            needs=Needs.GPU,
            alerts=("LLMGPULost",),
            width=12,
        ),
        Panel(
            title="GPUs of targets",
            kind=Kind.TABLE,
            queries=(now(f"{_BOTH.of('llm_gpu_target')} == 1"),),
            columns=("target", "gpu", "instance"),
            row_link=(TARGET, ("job", "instance", "target")),
            means="Which GPU serves which target, by configuration or by process.",
            do="A target that is missing: its processes were not found; see gpus: and process: in llm-exporter.yml.",
            needs=Needs.GPU_OF_TARGET,
            width=6,
        ),
        Panel(
            title="Devices there and expected",
            kind=Kind.STAT,
            queries=(
                now(f"sum by (job, instance) ({_G.less('gpu').of('llm_gpu_up')})", "there ({{instance}})"),
                now(_G.less("gpu").of("llm_gpu_expected_devices"), "expected ({{instance}})", Needs.GPU_COUNT),
            ),
            means="GPUs that answer, and gpu.expected_count.",
            do="Fewer than expected: see the kernel's log for Xid 79.",
            needs=Needs.GPU,
            alerts=("LLMGPULost",),
            width=6,
        ),
    ),
)
_WORK = Row(
    title="Work",
    panels=(
        _panel(
            "Activity",
            (
                Query(_G.of("llm_gpu_graphics_active_ratio"), "any kernel, " + _GPU),
                Query(_G.of("llm_gpu_sm_active_ratio"), "SMs, " + _GPU),
                Query(_G.of("llm_gpu_tensor_active_ratio"), "tensor, " + _GPU),
                Query(_G.of("llm_gpu_dram_active_ratio"), "memory, " + _GPU),
            ),
            RATIO,
            "What it did: any kernel resident, SMs with work, tensor pipes, memory bandwidth. Tensor is high in prefill, memory in decode.",
            "Kernels always there and everything else low: small kernels, one after the other; CUDA graphs or larger batches help.",
            most=1,
            needs=Needs.GPM,
            alerts=("LLMGPUStarvedByCPU",),
        ),
        _panel(
            "Power and utilisation",
            (
                Query(f"{_G.of('llm_gpu_power_watts')} / {_G.of('llm_gpu_power_limit_watts')}", "power of limit, " + _GPU),
                Query(_G.of("llm_gpu_utilization_ratio"), "utilisation, " + _GPU),
            ),
            RATIO,
            "Utilisation is the share of time with any kernel, and says nothing of how much it did; power does.",
            "100 % utilisation with little power is a kernel that spins: a deadlock in a collective, if nothing moves.",
            alerts=("LLMEngineStalled",),
        ),
        Panel(
            title="GPU starved by the CPU",
            kind=Kind.STATES,
            queries=(Query(per(("target",), _H.of("llm_gpu_starved"), "max"), _TARGET),),
            codes=NO_YES,
            unit="none",
            means="The engine has work and its GPUs stand idle: on after three decisions at least 10 s apart, off after four.",
            do="Quota, pressure and run delay below tell which; give the server more or quieter cores.",
            needs=Needs.GPU_OF_TARGET,
            alerts=("LLMGPUStarvedByCPU",),
        ),
        _line("Power", "llm_gpu_power_watts", Unit.WATTS, "Power drawn.", "Far below the limit with work there: something else limits."),
        _panel(
            "Clocks",
            (Query(_G.of("llm_gpu_clock_hertz"), "{{clock}}, " + _GPU),),
            unit_of(Unit.HERTZ),
            "Clocks of SMs and memory. SM activity is counted in cycles, so read it with the clock.",
            "A clock that fell under load: see Throttling.",
        ),
        _line(
            "Occupancy",
            "llm_gpu_sm_occupancy_ratio",
            Unit.RATIO,
            "Resident warps of the most possible; low is normal for tensor kernels.",
            "Only compare with itself.",
            most=1,
            needs=Needs.GPM,
        ),
    ),
)
_MEMORY = Row(
    title="Memory and links",
    panels=(
        _panel(
            "GPU memory",
            (
                Query(_G.of("llm_gpu_memory_used_bytes"), "used, " + _GPU),
                Query(_G.of("llm_gpu_memory_size_bytes"), "size, " + _GPU),
            ),
            BYTES,
            "Device memory in use. Engines take their share at start and keep it: this is no measure of load.",
            "For load see KV cache on the Target board.",
            looks=(("size", Look.LIMIT, ""),),
        ),
        _panel(
            "Memory by process",
            (Query(_BOTH.of("llm_gpu_process_memory_bytes"), "{{target}}, " + _GPU),),
            BYTES,
            "GPU memory by target; no name is a process that belongs to no target.",
            "A stranger takes memory and time: find it with nvidia-smi, move it away.",
            thresholds=(FOREIGN_MEMORY,),
            needs=Needs.GPU_OF_TARGET,
            alerts=("LLMGPUForeignProcess",),
        ),
        _panel(
            "PCIe",
            (
                Query(_G.of("llm_gpu_pcie_receive_bytes_per_second"), "receive, " + _GPU),
                Query(_G.of("llm_gpu_pcie_transmit_bytes_per_second"), "transmit, " + _GPU),
            ),
            unit_of(Unit.BYTES_PER_SECOND),
            "Traffic to and from the GPU over PCIe.",
            "Much of it without load: KV cache offloaded to host memory, or tensor parallelism without NVLink.",
        ),
        _panel(
            "NVLink",
            (
                Query(_G.of("llm_gpu_nvlink_receive_bytes_per_second"), "receive, " + _GPU),
                Query(_G.of("llm_gpu_nvlink_transmit_bytes_per_second"), "transmit, " + _GPU),
            ),
            unit_of(Unit.BYTES_PER_SECOND),
            "Traffic between GPUs.",
            "None with tensor parallelism: the ranks talk over PCIe; look at the topology (nvidia-smi topo -m).",
            needs=Needs.GPM,
        ),
    ),
)
_TROUBLE = Row(
    title="Heat and errors",
    panels=(
        _panel(
            "Throttling",
            (Query(_G.rate("llm_gpu_throttled_seconds_total", _HARMFUL), "{{reason}}, " + _GPU),),
            RATIO,
            "Share of time with clocks held down by heat or a brake. A power cap under full load is normal and not shown.",
            "Heat: airflow, fans, the neighbour's exhaust. Brake: the power supply.",
            thresholds=(THROTTLED,),
            most=1,
            alerts=("LLMGPUThrottled",),
        ),
        Panel(
            title="Throttle reasons now",
            kind=Kind.TABLE,
            queries=(now(f"{_G.of('llm_gpu_throttle_active')} == 1"),),
            columns=("gpu", "reason", "instance"),
            means="Reasons seen in the last 15 seconds; sw_power_cap under full load and gpu_idle are normal.",
            do="See Throttling for how much of the time.",
            needs=Needs.NOTHING_WRONG,
            alerts=("LLMGPUThrottled",),
        ),
        _panel(
            "Temperature",
            (Query(_G.of("llm_gpu_temperature_celsius"), "{{sensor}}, " + _GPU),),
            unit_of(Unit.CELSIUS),
            "Temperature of GPU and memory.",
            "One GPU hotter than its neighbours: dust, a fan, its place in the chassis.",
            alerts=("LLMGPUThrottled",),
        ),
        Panel(
            title="XID errors",
            kind=Kind.TABLE,
            queries=(
                now(per(("gpu", "xid"), f"time() - {_G.of('llm_gpu_xid_last_timestamp_seconds')}", "min"), "Age"),
                now(per(("gpu", "xid"), _G.of("llm_gpu_xid_errors_total")), "Errors"),
            ),
            columns=("gpu", "xid", "instance"),
            units=(("Age", SECONDS),),
            thresholds=(XID_AGE,),
            means="Errors that the driver reported, by number, since the exporter was started.",
            do="79 fell off the bus, 48 and 63/64 memory, 31 and 13 an application's fault: NVIDIA's table of XIDs says more.",
            needs=Needs.GPU_EVENT,
            alerts=("LLMGPUXidError", "LLMGPULost"),
        ),
        _panel(
            "ECC errors and remapped rows",
            (
                Query(_G.increase("llm_gpu_ecc_errors_total"), "{{kind}}, " + _GPU),
                Query(_G.of("llm_gpu_row_remap_pending"), "remap pending, " + _GPU),
                Query(_G.of("llm_gpu_row_remap_failed"), "remap failed, " + _GPU),
            ),
            "short",
            "Memory errors, and rows that wait to be remapped or could not be.",
            "Uncorrected or pending: reset the GPU when it is free. Remap failed: replace it.",
            needs=Needs.GPU_MEMORY_ERRORS,
            alerts=("LLMGPUXidError",),
        ),
    ),
)
_HOST = Row(
    title="Host",
    panels=(
        _panel(
            "CPU of the server's processes",
            (
                Query(_H.of("llm_host_process_cpu_cores"), "{{role}}, " + _TARGET),
                Query(_H.of("llm_host_cpus_available"), "available, " + _TARGET),
            ),
            unit_of(Unit.CORES),
            "Cores used by the target's processes, by their work, and CPUs that they may use.",
            "Engines poll: a full core proves nothing. Used near available does.",
            looks=(("available", Look.LIMIT, ""),),
            needs=Needs.HOST,
        ),
        _panel(
            "Hottest thread",
            (Query(_H.of("llm_host_hottest_thread_ratio"), _TARGET),),
            RATIO,
            "Share of a core that the busiest thread used. At 100 % it may be the limit, or it may poll.",
            "With a starved GPU and no run delay: one thread is the limit; more API servers, or a faster core.",
            most=1,
            needs=Needs.HOST,
            alerts=("LLMGPUStarvedByCPU",),
        ),
        _panel(
            "Run delay",
            (Query(_H.of("llm_host_run_delay_ratio"), _TARGET),),
            RATIO,
            "Share of time in which the busiest thread was runnable and had no core.",
            "Somebody else has the cores: pin the server, or move the others.",
            needs=Needs.HOST,
            alerts=("LLMGPUStarvedByCPU",),
        ),
        _panel(
            "CPU pressure and throttling",
            (
                Query(_H.of("llm_host_cpu_pressure_ratio"), "pressure, " + _TARGET),
                Query(_H.of("llm_host_cgroup_throttled_ratio"), "quota, " + _TARGET),
            ),
            RATIO,
            "Share of time in which some task waited for a core (PSI), and share of periods in which a CPU quota stopped the processes.",
            "Quota: raise the limit of the container. Pressure: fewer neighbours or more cores.",
            most=1,
            needs=Needs.HOST,
            alerts=("LLMGPUStarvedByCPU",),
        ),
    ),
)

SHEET = Sheet(
    board=GPU,
    purpose="GPUs: work, memory, heat, errors. Host: whether the CPUs can feed them.",
    variables=(JOB, INSTANCE, TARGETS, GPUS),
    rows=(_HARDWARE, _WORK, _MEMORY, _TROUBLE, _HOST),
)

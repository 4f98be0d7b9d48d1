"""The host reader on machines made of files."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from fakes.proc import FakeMachine
from llm_exporter.hardware import GpuProcess, GpuReading, HostReading, HostTick
from llm_exporter.sources.host import HostReader
from llm_exporter.sources.processes import ProcessFinder, ProcessSearch
from llm_exporter.sources.sockets import Names

VLLM = "/opt/venv/bin/python3 -m vllm.entrypoints.openai.api_server --model m --port 8000 --api-key sk-secret"
SGLANG = "/opt/venv/bin/python3 -m sglang.launch_server --model-path m --port 30000"
TARGET = ProcessSearch.of("chat", "http://127.0.0.1:8000")


class Bench:
    def __init__(self, machine: FakeMachine, names: dict[str, list[str]] | None = None, own_pid: int = 999_999) -> None:
        self.machine = machine
        resolver = Names(lambda host: (names or {})[host])
        self.reader = HostReader(
            proc=machine.proc,
            cgroup=machine.cgroup,
            cpus=machine.cpus,
            finder=ProcessFinder(machine.proc, names=resolver, own_pid=own_pid),
        )

    def tick(self, now: float, *searches: ProcessSearch, gpus: tuple[GpuReading, ...] = ()) -> HostTick:
        return self.reader.tick(now, searches or (TARGET,), gpus)

    def one(self, now: float, search: ProcessSearch = TARGET, gpus: tuple[GpuReading, ...] = ()) -> HostReading:
        return self.tick(now, search, gpus=gpus).readings[0]


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


@pytest.fixture
def vllm(machine: FakeMachine) -> FakeMachine:
    """A vLLM server with tensor parallelism, its resource tracker, and an unrelated process."""
    machine.listen(8000, 555)
    machine.process(100, 1, "python3", VLLM, sockets=(555,))
    machine.process(110, 100, "VLLM::EngineCor", "VLLM::EngineCore")
    machine.process(111, 110, "VLLM::Worker_TP", "VLLM::Worker_TP0")
    machine.process(112, 110, "VLLM::Worker_TP", "VLLM::Worker_TP1")
    machine.process(113, 100, "python3", "/opt/venv/bin/python3 -c from multiprocessing.resource_tracker import main;main(45)")
    machine.process(200, 1, "trainer", "python3 train.py")
    machine.pressure(3.0)
    return machine


def roles(reading: HostReading) -> dict[int, str]:
    return {process.pid: process.role for process in reading.processes or ()}


def gpu(*pids: int, resolves: bool | None = True) -> GpuReading:
    return GpuReading(at=0, gpu="0", processes=tuple(GpuProcess(pid, 1e9, resolves) for pid in pids))


# ---- finding ----


def test_the_owner_of_the_listening_socket_and_its_children_are_the_target(vllm: FakeMachine) -> None:
    assert roles(Bench(vllm).one(0)) == {
        100: "api_server",
        110: "engine_core",
        111: "worker",
        112: "worker",
        113: "other",
    }


def test_sglang_processes_have_their_roles(machine: FakeMachine) -> None:
    machine.listen(30000, 556, "0.0.0.0")
    machine.process(300, 1, "python3", SGLANG, sockets=(556,))
    machine.process(301, 300, "sglang::schedul", "sglang::scheduler_TP0")
    machine.process(302, 300, "sglang::detoken", "sglang::detokenizer")
    machine.process(303, 300, "sglang::tokeniz", "sglang::tokenizer_worker:303")
    machine.process(304, 300, "sglang::data_pa", "sglang::data_parallel_controller")
    assert roles(Bench(machine).one(0, ProcessSearch.of("s", "http://localhost:30000"))) == {
        300: "api_server",
        301: "scheduler",
        302: "detokenizer",
        303: "tokenizer",
        304: "other",
    }


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::", "10.0.0.5"])
def test_a_server_is_found_on_any_address_that_reaches_it(machine: FakeMachine, address: str) -> None:
    machine.listen(8000, 555, address)
    machine.process(100, 1, "python3", VLLM, sockets=(555,))
    url = "http://10.0.0.5:8000" if address == "10.0.0.5" else "http://127.0.0.1:8000"
    assert roles(Bench(machine).one(0, ProcessSearch.of("chat", url))) == {100: "api_server"}


def test_a_server_on_another_machine_is_remote_even_if_the_port_is_taken_here(vllm: FakeMachine) -> None:
    reading = Bench(vllm).one(0, ProcessSearch.of("far", "http://10.9.9.9:8000"))
    assert reading.processes is None
    assert reading.missing == {"processes": "remote"}


def test_a_name_is_local_when_it_leads_to_an_address_of_this_machine(vllm: FakeMachine) -> None:
    vllm.close()
    vllm.listen(8000, 555, "0.0.0.0")
    bench = Bench(vllm, {"chat.internal": ["10.0.0.5"], "far.internal": ["10.9.9.9"]})
    near, far = ProcessSearch.of("near", "http://chat.internal:8000"), ProcessSearch.of("far", "http://far.internal:8000")
    bench.tick(0, near, far)
    for thread in list(bench.reader._finder._names._running.values()):
        thread.join(5)
    readings = bench.tick(1.5, near, far).readings
    assert 100 in roles(readings[0])
    assert readings[1].missing == {"processes": "remote"}


def test_a_name_server_that_does_not_know_the_name_leaves_the_target_remote(vllm: FakeMachine) -> None:
    def fail(_: str) -> list[str]:
        raise OSError("name server is down")

    names = Names(fail)
    assert names.addresses("chat.internal", 0.0) == frozenset()
    for thread in list(names._running.values()):
        thread.join(5)
    assert names.addresses("chat.internal", 1.0) == frozenset()


def test_nothing_listens_so_the_process_is_not_found(machine: FakeMachine) -> None:
    reading = Bench(machine).one(0)
    assert reading.missing == {"processes": "process_not_found"}


def test_a_server_that_still_loads_is_found_by_its_command_line(vllm: FakeMachine) -> None:
    vllm.close()
    assert set(roles(Bench(vllm).one(0))) == {100, 110, 111, 112, 113}
    assert Bench(vllm).one(0, ProcessSearch.of("other", "http://127.0.0.1:8001")).processes is None


def test_descriptors_that_may_not_be_read_are_said(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.listen(8000, 555)
    machine.process(100, 1, "python3", "python3 serve.py", sockets=(555,))
    import llm_exporter.sources.sockets as sockets

    def listdir(folder: str) -> list[str]:
        raise PermissionError(folder)

    monkeypatch.setattr(sockets, "os", SimpleNamespace(listdir=listdir))
    bench = Bench(machine)
    tick = bench.tick(0)
    assert tick.readings[0].missing == {"processes": "no_permission"}
    assert (tick.sources["host"].up, tick.sources["host"].reason) == (False, "no_permission")
    assert "root" in tick.sources["host"].hint


def test_a_socket_without_a_process_is_of_another_pid_namespace(machine: FakeMachine) -> None:
    machine.listen(8000, 555)
    tick = Bench(machine).tick(0)
    assert tick.readings[0].missing == {"processes": "other_pid_namespace"}
    assert tick.sources["host"].reason == "other_pid_namespace"


def test_a_port_proxy_is_not_the_server(vllm: FakeMachine) -> None:
    vllm.process(100, 1, "python3", VLLM)
    vllm.process(50, 1, "docker-proxy", "docker-proxy -host-port 8000", sockets=(555,))
    assert 50 not in roles(Bench(vllm).one(0, gpus=(gpu(111, 112),)))
    assert 100 in roles(Bench(vllm).one(0, gpus=(gpu(111, 112),))), "found by NVML's processes and their parents"


def test_nvml_names_the_processes_where_the_socket_does_not(vllm: FakeMachine) -> None:
    vllm.close()
    search = ProcessSearch.of("chat", "http://127.0.0.1:8000", "nvml")
    assert set(roles(Bench(vllm).one(0, search, (gpu(111, 112),)))) == {100, 110, 111, 112, 113}


def test_of_two_servers_on_the_gpus_each_target_gets_the_one_with_its_port(vllm: FakeMachine) -> None:
    vllm.close()
    vllm.process(300, 1, "python3", SGLANG)
    vllm.process(301, 300, "sglang::schedul", "sglang::scheduler")
    one, two = ProcessSearch.of("v", "http://127.0.0.1:8000"), ProcessSearch.of("s", "http://127.0.0.1:30000")
    readings = Bench(vllm).tick(0, one, two, gpus=(gpu(111, 301),)).readings
    assert set(roles(readings[0])) == {100, 110, 111, 112, 113}
    assert set(roles(readings[1])) == {300, 301}


def test_two_servers_of_which_none_names_the_port_are_not_guessed_between(machine: FakeMachine) -> None:
    machine.process(100, 1, "python3", "python3 a.py")
    machine.process(200, 1, "python3", "python3 b.py")
    assert Bench(machine).one(0, gpus=(gpu(100, 200),)).missing == {"processes": "process_not_found"}


def test_a_command_line_pattern_finds_the_server_and_not_the_exporter(vllm: FakeMachine) -> None:
    vllm.process(900, 1, "llm-exporter", "llm-exporter serve --config.file vllm.entrypoints.yml")
    search = ProcessSearch.of("chat", "http://10.9.9.9:1", "cmdline", r"vllm\.entrypoints")
    assert set(roles(Bench(vllm, own_pid=900).one(0, search))) == {100, 110, 111, 112, 113}


def test_secrets_of_a_command_line_do_not_enter_the_reading(vllm: FakeMachine) -> None:
    assert "sk-secret" not in repr(Bench(vllm).one(0))


# ---- what they do ----


def test_counters_of_processes_and_threads_are_read(vllm: FakeMachine) -> None:
    bench = Bench(vllm)
    vllm.thread(110, 110, "VLLM::EngineCor", run=5.0, wait=0.5)
    vllm.thread(110, 120, "python3", run=0.25)
    vllm.cpu_time(110, 100, "VLLM::EngineCor", 6.0)
    (engine,) = [process for process in bench.one(0).processes or () if process.pid == 110]
    assert engine.cpu_seconds == 6.0, "ended threads included"
    assert [(t.tid, t.run_seconds, t.wait_seconds) for t in sorted(engine.threads)] == [(110, 5.0, 0.5), (120, 0.25, 0.0)]


def test_between_sweeps_only_busy_threads_are_read_and_a_new_busy_one_is_noticed(vllm: FakeMachine) -> None:
    bench = Bench(vllm)
    for tid in range(500, 540):
        vllm.thread(110, tid, "pool", run=0.001 * tid)
    assert len(_threads(bench.one(0), 110)) == 41
    assert len(_threads(bench.one(1), 110)) == 8
    vllm.thread(110, 505, "pool", run=60.0)
    assert 505 in _threads(bench.one(5), 110)
    assert 505 in _threads(bench.one(6), 110)


def _threads(reading: HostReading, pid: int) -> set[int]:
    return {thread.tid for process in reading.processes or () if process.pid == pid for thread in process.threads}


def test_without_schedstat_cpu_time_is_there_and_the_delay_is_missing(machine: FakeMachine) -> None:
    machine.listen(8000, 555)
    machine.process(100, 1, "python3", VLLM, sockets=(555,))
    machine.thread(100, 100, "python3", run=2.0, schedstat=False)
    reading = Bench(machine).one(0)
    (process,) = reading.processes or ()
    assert process.threads[0].cpu_seconds == 2.0
    assert process.threads[0].wait_seconds is None
    assert reading.missing == {"run_delay": "not_supported", "cpu_pressure": "not_supported", "cgroups": "not_visible"}


def test_threads_and_processes_that_end_meanwhile_disturb_nothing(vllm: FakeMachine) -> None:
    bench = Bench(vllm)
    bench.one(0)
    vllm.end(112)
    assert set(roles(bench.one(1))) == {100, 110, 111, 113}
    vllm.process(114, 110, "VLLM::Worker_TP", "VLLM::Worker_TP1")
    assert 114 in roles(bench.one(2.5)), "looked for anew as soon as one had ended"


def test_a_reused_process_id_is_another_process(vllm: FakeMachine) -> None:
    bench = Bench(vllm)
    bench.one(0)
    vllm.process(111, 1, "nginx", "nginx: worker process", started=7777)
    assert 111 not in roles(bench.one(1))
    assert 111 not in roles(bench.one(2.5))


def test_a_zombie_is_dead(vllm: FakeMachine) -> None:
    vllm.process(111, 110, "VLLM::Worker_TP", state="Z")
    assert 111 not in roles(Bench(vllm).one(0))


def test_a_restarted_server_is_found_again(vllm: FakeMachine) -> None:
    bench = Bench(vllm)
    bench.one(0)
    for pid in (100, 110, 111, 112, 113):
        vllm.end(pid)
    vllm.close()
    assert bench.one(1).processes is None
    vllm.listen(8000, 777)
    vllm.process(400, 1, "python3", VLLM, sockets=(777,), started=900)
    assert set(roles(bench.one(12))) == {400}


# ---- limits ----


def test_cpus_available_is_the_least_of_affinity_quota_and_online(vllm: FakeMachine) -> None:
    assert Bench(vllm).one(0).cpus_available == 16
    for pid in (100, 110, 111, 112, 113):
        (vllm.proc / str(pid) / "status").write_text("Cpus_allowed_list:\t0-1,4\n")
    assert Bench(vllm).one(0).cpus_available == 3
    (vllm.cpus / "online").write_text("0-1\n")
    assert Bench(vllm).one(0).cpus_available == 2


V2_STAT = "usage_usec 1000000\nnr_periods 200\nnr_throttled 150\nthrottled_usec 9000000\n"


def test_cgroup_v2_quota_and_throttling_of_the_group_and_its_ancestors(machine: FakeMachine) -> None:
    machine.listen(8000, 555)
    machine.process(100, 1, "python3", VLLM, sockets=(555,), cgroup="0::/pods/pod1/engine")
    machine.group("", {"cgroup.controllers": "cpu memory\n", "cpu.stat": "usage_usec 5\n"})
    machine.group("pods", {"cpu.max": "max 100000\n", "cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_usec 0\n"})
    machine.group("pods/pod1", {"cpu.max": "60000 100000\n", "cpu.stat": V2_STAT})
    machine.group(
        "pods/pod1/engine",
        {
            "cpu.max": "max 100000\n",
            "cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
            "cpu.pressure": "some avg10=1.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0 avg60=0 avg300=0 total=0\n",
        },
    )
    machine.pressure(99.0)
    reading = Bench(machine).one(0)
    assert reading.cpus_available == 0.6
    assert [(g.path, g.periods, g.throttled_periods, g.throttled_seconds) for g in reading.cgroups if g.periods] == [
        ("pods/pod1", 200, 150, 9.0)
    ]
    assert reading.cpu_pressure_seconds == 2.5, "the group's own, not the machine's"
    assert reading.missing == {}


def test_cgroup_v1_quota_and_throttling(machine: FakeMachine) -> None:
    machine.listen(8000, 555)
    listing = "5:memory:/docker/a\n4:cpu,cpuacct:/docker/a\n0::/docker/a"
    machine.process(100, 1, "python3", VLLM, sockets=(555,), cgroup=listing)
    machine.group("cpu,cpuacct", {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"})
    machine.group(
        "cpu,cpuacct/docker/a",
        {
            "cpu.cfs_quota_us": "250000\n",
            "cpu.cfs_period_us": "100000\n",
            "cpu.stat": "nr_periods 10\nnr_throttled 4\nthrottled_time 1500000000\n",
        },
    )
    machine.pressure(7.0)
    reading = Bench(machine).one(0)
    assert reading.cpus_available == 2.5
    assert [(g.periods, g.throttled_periods, g.throttled_seconds) for g in reading.cgroups] == [(10, 4, 1.5)]
    assert reading.cpu_pressure_seconds == 7.0


def test_a_container_sees_its_own_group_at_the_mount(machine: FakeMachine) -> None:
    machine.listen(8000, 555)
    listing = "4:cpu,cpuacct:/docker/a"
    machine.process(100, 1, "python3", VLLM, sockets=(555,), cgroup=listing)
    (machine.proc / "self" / "cgroup").write_text(listing + "\n")
    machine.group("cpu,cpuacct", {"cpu.cfs_quota_us": "100000\n", "cpu.cfs_period_us": "100000\n", "cpu.stat": "nr_periods 3\n"})
    assert Bench(machine).one(0).cpus_available == 1.0


def test_a_group_outside_our_namespace_is_not_visible(machine: FakeMachine) -> None:
    machine.listen(8000, 555)
    machine.process(100, 1, "python3", VLLM, sockets=(555,), cgroup="0::/../other")
    machine.group("", {"cgroup.controllers": "cpu\n"})
    assert Bench(machine).one(0).missing["cgroups"] == "not_visible"


# ---- the source as a whole ----


def test_remote_and_stopped_servers_are_no_fault_of_the_source(vllm: FakeMachine) -> None:
    far, gone = ProcessSearch.of("far", "http://10.9.9.9:8000"), ProcessSearch.of("gone", "http://127.0.0.1:1")
    assert Bench(vllm).tick(0, far, gone).sources["host"].up


def test_a_machine_without_procfs_is_named(tmp_path: Path) -> None:
    reader = HostReader(proc=tmp_path / "none", cgroup=tmp_path, cpus=tmp_path)
    assert reader.tick(0, [TARGET]).sources["host"].reason == "not_supported"


def test_a_reason_is_logged_once(machine: FakeMachine, caplog: pytest.LogCaptureFixture) -> None:
    machine.listen(8000, 555)
    bench = Bench(machine)
    with caplog.at_level(logging.INFO):
        for second in range(20):
            bench.tick(second)
    assert [(vars(record)["target"], vars(record)["reason"]) for record in caplog.records] == [("chat", "other_pid_namespace")]

"""What a simulated server runs on: a plain cost model with named presets, and the conditions that scenarios change.

`model.py` asks `Hardware` how long one engine step keeps the GPU and the host busy, and `Conditions` how much of its
CPU time the server gets. The numbers of the GPU presets are roofline figures (bytes ÷ bandwidth, FLOP ÷ useful
FLOP/s) rounded to what real servers of that size show; `cpu-tiny-*` are fitted to a four-layer model on two CPU
cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hardware:
    """Seconds and sizes of one server.

    Attributes:
        gpus: cards that work in step (tensor parallel); 0 for a server on CPU.
        weight_seconds: one read of the weights, the floor of every step.
        prefill_seconds: compute per prompt token.
        pair_seconds: attention compute per prompt token and token of context before it.
        sequence_seconds: compute, sampling and activations per decoding sequence.
        context_seconds: reading one token of KV cache.
        communication_seconds: all-reduces per step.
        host_seconds: host work per step that the GPU waits for (launch, sampling result).
        host_overlapped_seconds: host work per step that runs while the GPU computes (scheduling, detokenised output
            queue).
        host_sequence_seconds: overlapped host work per sequence of the batch.
        tokenise_seconds, tokenise_token_seconds: the single front-end process, per request and per prompt token.
        chunk_seconds: the front-end process, per streamed output.
        kv_blocks, block_tokens: the KV cache.
        max_running, step_tokens: scheduler limits: sequences in the batch, tokens per step (vLLM) or per prefill
            chunk (SGLang).
        context_tokens: longest context.
        memory_bytes, memory_used_bytes: per card.
        power_idle_watts, power_limit_watts, clock_mhz: per card.
    """

    name: str
    gpu_name: str
    gpus: int
    weight_seconds: float
    prefill_seconds: float
    pair_seconds: float
    sequence_seconds: float
    context_seconds: float
    communication_seconds: float
    host_seconds: float
    host_overlapped_seconds: float
    host_sequence_seconds: float
    tokenise_seconds: float
    tokenise_token_seconds: float
    chunk_seconds: float
    kv_blocks: int
    block_tokens: int
    max_running: int
    step_tokens: int
    context_tokens: int
    memory_bytes: int = 0
    memory_used_bytes: int = 0
    power_idle_watts: float = 0.0
    power_limit_watts: float = 0.0
    clock_mhz: int = 0

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.kv_blocks * self.block_tokens

    def compute_seconds(self, prefill_tokens: int, pairs: float) -> float:
        """GPU seconds that the prompt tokens of one step need; `pairs` = Σ prompt tokens × context before them."""
        return prefill_tokens * self.prefill_seconds + pairs * self.pair_seconds

    def memory_seconds(self, sequences: int, context: int) -> float:
        """GPU seconds that decoding takes in one step: the KV cache is read, every sequence samples a token."""
        return sequences * self.sequence_seconds + context * self.context_seconds


@dataclass(slots=True)
class Conditions:
    """What the surroundings do to the server; scenarios change these while it runs.

    Attributes:
        cores: CPUs that the server may use.
        quota_cores: cgroup CPU limit, None for none.
        run_delay: share of the time in which a runnable thread waits for a core (noisy neighbour), 0 to 0.9.
        tokenise_factor: the front-end process is this much slower (a heavy tokeniser, a slow template).
        clock_ratio: GPU clock against nominal; below 1 while throttled.
        throttle_reason: NVML bit that goes with it (0x40: hardware thermal slowdown).
        foreign_share: share of the GPU that another process takes.
        hung: the engine process makes no step any more; its front end still answers.
    """

    cores: int = 16
    quota_cores: float | None = None
    run_delay: float = 0.0
    tokenise_factor: float = 1.0
    clock_ratio: float = 1.0
    throttle_reason: int = 0
    foreign_share: float = 0.0
    hung: bool = False


_GIB = 1 << 30

PRESETS: Mapping[str, Hardware] = {
    preset.name: preset
    for preset in (
        Hardware(
            name="h200-8b",
            gpu_name="NVIDIA H200",
            gpus=1,
            weight_seconds=4.2e-3,
            prefill_seconds=2.8e-5,
            pair_seconds=4e-10,
            sequence_seconds=9e-6,
            context_seconds=3.5e-8,
            communication_seconds=0.0,
            host_seconds=2.0e-4,
            host_overlapped_seconds=1.6e-3,
            host_sequence_seconds=2.0e-5,
            tokenise_seconds=1.5e-3,
            tokenise_token_seconds=2.0e-6,
            chunk_seconds=4.5e-5,
            kv_blocks=52000,
            block_tokens=16,
            max_running=256,
            step_tokens=8192,
            context_tokens=32768,
            memory_bytes=140 * _GIB,
            memory_used_bytes=126 * _GIB,
            power_idle_watts=116.0,
            power_limit_watts=700.0,
            clock_mhz=1980,
        ),
        Hardware(
            name="h100-8b",
            gpu_name="NVIDIA H100 80GB HBM3",
            gpus=1,
            weight_seconds=6.0e-3,
            prefill_seconds=2.9e-5,
            pair_seconds=4e-10,
            sequence_seconds=1.0e-5,
            context_seconds=5.0e-8,
            communication_seconds=0.0,
            host_seconds=2.5e-4,
            host_overlapped_seconds=1.8e-3,
            host_sequence_seconds=2.0e-5,
            tokenise_seconds=2.0e-3,
            tokenise_token_seconds=2.0e-6,
            chunk_seconds=6.0e-5,
            kv_blocks=28000,
            block_tokens=16,
            max_running=128,
            step_tokens=8192,
            context_tokens=32768,
            memory_bytes=80 * _GIB,
            memory_used_bytes=72 * _GIB,
            power_idle_watts=90.0,
            power_limit_watts=700.0,
            clock_mhz=1980,
        ),
        Hardware(
            name="h100-70b-tp4",
            gpu_name="NVIDIA H100 80GB HBM3",
            gpus=4,
            weight_seconds=1.3e-2,
            prefill_seconds=7.0e-5,
            pair_seconds=4e-10,
            sequence_seconds=2.0e-5,
            context_seconds=3.0e-8,
            communication_seconds=2.0e-3,
            host_seconds=4.0e-4,
            host_overlapped_seconds=3.0e-3,
            host_sequence_seconds=3.0e-5,
            tokenise_seconds=2.0e-3,
            tokenise_token_seconds=2.0e-6,
            chunk_seconds=6.0e-5,
            kv_blocks=28000,
            block_tokens=16,
            max_running=128,
            step_tokens=8192,
            context_tokens=32768,
            memory_bytes=80 * _GIB,
            memory_used_bytes=72 * _GIB,
            power_idle_watts=90.0,
            power_limit_watts=700.0,
            clock_mhz=1980,
        ),
        Hardware(
            name="cpu-tiny-vllm",
            gpu_name="",
            gpus=0,
            weight_seconds=4.0e-3,
            prefill_seconds=6.0e-5,
            pair_seconds=1e-8,
            sequence_seconds=1.2e-4,
            context_seconds=2.0e-8,
            communication_seconds=0.0,
            host_seconds=1.0e-3,
            host_overlapped_seconds=5.0e-4,
            host_sequence_seconds=2.0e-5,
            tokenise_seconds=3.0e-3,
            tokenise_token_seconds=6.0e-6,
            chunk_seconds=1.2e-4,
            kv_blocks=8192,
            block_tokens=128,
            max_running=8,
            step_tokens=2048,
            context_tokens=2048,
        ),
        Hardware(
            name="cpu-tiny-sglang",
            gpu_name="",
            gpus=0,
            weight_seconds=1.4e-2,
            prefill_seconds=2.2e-4,
            pair_seconds=1e-8,
            sequence_seconds=1.0e-3,
            context_seconds=1.0e-7,
            communication_seconds=0.0,
            host_seconds=2.5e-3,
            host_overlapped_seconds=5.0e-4,
            host_sequence_seconds=5.0e-5,
            tokenise_seconds=6.0e-3,
            tokenise_token_seconds=6.0e-6,
            chunk_seconds=3.0e-4,
            kv_blocks=512,
            block_tokens=16,
            max_running=8,
            step_tokens=256,
            context_tokens=4096,
        ),
    )
}

"""The daemon: wires sources, memory, signals and page; owns threads, clocks and schedules."""

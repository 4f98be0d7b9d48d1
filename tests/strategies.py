"""Shared hypothesis strategies: what engines may do to their counters from one scrape to the next."""

from __future__ import annotations

from hypothesis import strategies as st

# Gains of a counter between two scrapes; idle ones are common.
gains = st.one_of(st.just(0), st.integers(1, 5), st.integers(0, 10**9))
# Seconds between two scrapes: on time, late, or after a long silence.
pauses = st.one_of(st.just(5.0), st.floats(0.5, 400.0))
# Ascending finite edges of a histogram.
edges = st.sets(st.sampled_from([0.005, 0.01, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 80.0]), min_size=1, max_size=5).map(sorted)

"""Whatever JSON can hold, for hypothesis."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
#: The first text that hypothesis draws builds its character tables, which takes its time.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

"""Counts of a server, in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Seconds."""


class Metrics:
    """What a server has answered."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0
        self.rows = 0
        self.in_flight = 0

    def add(self, path: str, status: int) -> None:
        """``path`` is one that exists: a client must not choose how many counters there are."""
        self.requests[path, status] += 1

    def add_time(self, seconds: float) -> None:
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds

    def text(self) -> str:
        lines = [
            "# HELP elegantrl_requests_total Requests that were answered.",
            "# TYPE elegantrl_requests_total counter",
            *(
                f'elegantrl_requests_total{{path="{path}",status="{status}"}} {count}'
                for (path, status), count in sorted(self.requests.items())
            ),
            "# HELP elegantrl_rows_total Observations for which an action was computed.",
            "# TYPE elegantrl_rows_total counter",
            f"elegantrl_rows_total {self.rows}",
            "# HELP elegantrl_requests_in_flight Requests for actions that are not answered yet.",
            "# TYPE elegantrl_requests_in_flight gauge",
            f"elegantrl_requests_in_flight {self.in_flight}",
            "# HELP elegantrl_act_seconds Time from the body of a request for actions to its answer.",
            "# TYPE elegantrl_act_seconds histogram",
        ]
        total = 0
        for limit, count in zip((*BUCKETS, "+Inf"), self.buckets, strict=True):
            total += count
            lines.append(f'elegantrl_act_seconds_bucket{{le="{limit}"}} {total}')
        lines += [f"elegantrl_act_seconds_sum {self.seconds:.6f}", f"elegantrl_act_seconds_count {total}", ""]
        return "\n".join(lines)

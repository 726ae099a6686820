"""A cluster of three nodes in processes: one is lost in the middle of a run and one is added."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elegantrl

LoadCommit = Callable[[Path], dict[str, Any]]
HashState = Callable[[Any], str]

SETTINGS: dict[str, Any] = {
    "hidden": [8], "horizon": 20, "batch_size": 16, "num_epochs": 1, "num_envs": 8, "num_groups": 4, "seed": 3,
    "eval": {"interval": 10**6, "episodes": 2, "max_episode_steps": 40},
}  # fmt: skip

PROGRAM = """
import json
import socket
import sys
from pathlib import Path

from ray.cluster_utils import Cluster

import elegantrl
from elegantrl.runtime.progress import Silent

# Four roles and four processors, two of them on the node that is lost: at least one of its roles is a worker.
# A node that does not answer is given up after seconds instead of minutes.
SYSTEM = {"health_check_period_ms": 1000, "health_check_timeout_ms": 5000, "health_check_failure_threshold": 3,
          "worker_niceness": 0, "prestart_worker_first_driver": False}


def node(cpus):
    # With ports of its own: on a busy machine Ray does not wait long enough until a node has found some.
    sockets = [socket.socket() for _ in range(4)]
    for one in sockets:
        one.bind(("", 0))
    numbers = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    names = ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port", "dashboard_agent_listen_port")
    return {"num_cpus": cpus, **dict(zip(names, numbers))}


class Operator(Silent):
    def __init__(self, cluster):
        self.cluster, self.said, self.removed, self.rounds_since_loss = cluster, [], None, 0

    def message(self, text):
        self.said.append(text)
        print(text, file=sys.stderr, flush=True)

    def progress(self, progress, steps_per_second):
        if self.removed is None:
            self.removed = self.cluster.list_all_nodes()[-1]
            self.cluster.remove_node(self.removed, allow_graceful=False)
        if any("was lost with its node" in text for text in self.said):
            # A node that is added at once would be there before the new worker, which then would have no need to move.
            self.rounds_since_loss += 1
            if self.rounds_since_loss == 3:
                self.cluster.add_node(**node(2))

    def is_over(self, event):
        return not any(text.startswith("worker") and "moved to processors of its own" in text for text in self.said)


def main():
    settings, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    cluster = Cluster(initialize_head=True, head_node_args={
        **node(1), "include_dashboard": False, "_system_config": SYSTEM,
    })
    for cpus in (1, 2):
        cluster.add_node(**node(cpus))
    cluster.wait_for_nodes()
    operator = Operator(cluster)
    try:
        result = elegantrl.train(
            "ppo", "CartPole-v1", run_dir=folder, executor="ray", address=cluster.address, num_workers=3,
            max_steps=10**9, max_seconds=1000, display=operator, callback=operator.is_over, **settings,
        )
    finally:
        cluster.shutdown()
    print(json.dumps({"summary": result.summary, "said": operator.said}))


if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_survives_the_loss_of_a_node_and_uses_a_new_one(
    load_commit: LoadCommit, hash_state: HashState, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), json.dumps(SETTINGS), str(tmp_path / "ray")]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "RAY_raylet_start_wait_time_s": "300"}
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # names of sockets are short
        env["RAY_TMPDIR"] = folder
        run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=1500, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    outcome = json.loads(run.stdout.splitlines()[-1])
    summary, said = outcome["summary"], "\n".join(outcome["said"])
    assert summary["stop_reason"] == "callback", said
    assert summary["restarts"] >= 1 and summary["steps_lost"] >= 20 * 2 and summary["episodes_lost"] == 0
    assert "was lost with its node" in said and "(1 of 10 within 10 minutes)" in said
    # The same bits as a run that lost nothing.
    layout = {"run_dir": tmp_path / "inline", "executor": "inline", "max_steps": summary["env_steps"]}
    elegantrl.train("ppo", "CartPole-v1", verbose=False, **layout, **SETTINGS)
    parts = [load_commit(tmp_path / name) for name in ("ray", "inline")]
    hashes = [{name: hash_state(part) for name, part in some.items() if name != "supervisor"} for some in parts]
    assert hashes[0] == hashes[1]

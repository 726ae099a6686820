"""For tests of a user's own set-up: an environment with a chosen fault, failpoints, and simulators that are none.

    elegantrl train ppo elegantrl.testing:FaultEnv --env-kwargs mode=raise at_step=500 only_slots=3
    elegantrl train ppo elegantrl.testing:FakeIsaacLabEnv --num-envs 64

``failpoint`` marks a place where a test can make a process die, fail or wait; see ``elegantrl.failpoints``. The fakes
have the interfaces of Isaac Gym, legged_gym, RSL-RL, Isaac Lab and mjlab, with their buffers and resets, for machines
without them.
"""

from ..failpoints import failpoint
from .fault_env import FaultEnv
from .isaac_gym import FakeLeggedRobot, FakeVecTask
from .isaac_lab import FakeIsaacLabEnv, FakeIsaacLabTeam, FakeMjlabEnv
from .rsl_rl import FakeRslVecEnv

__all__ = [
    "FaultEnv",
    "failpoint",
    "FakeVecTask",
    "FakeLeggedRobot",
    "FakeRslVecEnv",
    "FakeIsaacLabEnv",
    "FakeMjlabEnv",
    "FakeIsaacLabTeam",
]

"""Pages as scripts, which train at their top level without a guard: those about Isaac Gym, and that of `run`.

A package in place of IsaacGymEnvs has tasks with the interface of Isaac Gym and the sizes of its ant.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import elegantrl

ENVS = """
import torch
from elegantrl.testing import FakeVecTask
from gymnasium.spaces import Box


class Ant(FakeVecTask):
    def __init__(self, num_envs, device):
        super().__init__(num_envs, device)
        self.num_obs, self.num_acts, self.action_space = 60, 8, Box(-1.0, 1.0, (8,))
        self.obs_buf = torch.zeros(num_envs, 60, device=device)

    def compute_observations(self):
        self.obs_buf.zero_()
        self.obs_buf[:, :3] = self.sim[:, [0, 1, 3]]


def make(seed, task, num_envs, sim_device, rl_device, headless, force_render):
    return Ant(num_envs, rl_device)
"""
ARGS = """
env_func = IsaacVecEnv
env_args = {
    'env_num': 2 ** 5,
    'env_name': 'Ant',
    'max_step': 1000,
    'state_dim': 60,
    'action_dim': 8,
    'if_discrete': False,
    'target_return': 14000.0,
    'device_id': None,  # set by worker
    'if_print': False,
}
"""
SETTINGS = """
args.eval_env_func = IsaacOneEnv
args.eval_env_args = args.env_args.copy()
args.eval_env_args['env_num'] = 1
args.net_dim = 2 ** 4
args.batch_size = args.net_dim * 4
args.target_step = 2 ** 4  # the page has args.max_step
args.repeat_times = 2 ** 1
args.save_gap = 2 ** 9
args.eval_gap = 2 ** 8
args.eval_times1 = 2 ** 0
args.eval_times2 = 2 ** 2
args.worker_num = 1
args.break_step = 1000
"""
PAGES = {
    "Isaac Gym": f"""
from elegantrl.envs.IsaacGym import IsaacVecEnv, IsaacOneEnv
import isaacgym
import torch  # import torch after import IsaacGym modules
{ARGS}
from elegantrl.agents.AgentPPO import AgentPPO
from elegantrl.run import train_and_evaluate_mp, Arguments
args = Arguments(agent=AgentPPO, env_func=env_func, env_args=env_args)
{SETTINGS}
args.learner_gpus = 0
train_and_evaluate_mp(args)
""",
    "tournament": f"""
import isaacgym
import torch  # import torch after import IsaacGym modules
from elegantrl.train.config import Arguments
from elegantrl.train.run import train_and_evaluate_mp
from elegantrl.envs.IsaacGym import IsaacVecEnv, IsaacOneEnv
from elegantrl.agents.AgentPPO import AgentPPO
{ARGS}
args = Arguments(agent=AgentPPO(), env_func=env_func, env_args=env_args)
args.agent.if_use_old_traj = False  # todo
{SETTINGS}
args.learner_gpus = [(i,) for i in range(0, 2)]  # the page has 8
train_and_evaluate_mp(args, python_path='.../bin/python3')
""",
    "run": """
from elegantrl.train.config import Arguments
from elegantrl.train.run import train_and_evaluate, train_and_evaluate_mp
from elegantrl.envs.Chasing import ChasingEnv
from elegantrl.agents.AgentPPO import AgentPPO
# Step 1
args = Arguments(agent=AgentPPO(), env_func=ChasingEnv)
args.break_step = 500
# Step 2
train_and_evaluate_mp(args)
""",
}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_as_a_script(page, tmp_path):
    for name, text in {"isaacgym": "", "isaacgymenvs": ENVS}.items():
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").write_text(text)
    (tmp_path / "page.py").write_text(PAGES[page])
    paths = [str(Path(elegantrl.__file__).parents[1]), str(tmp_path / "site")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.glob("*/actor.pth")), done.stdout + done.stderr
    assert ("everything runs in this process, because others would repeat the" in done.stderr) == (page != "tournament")

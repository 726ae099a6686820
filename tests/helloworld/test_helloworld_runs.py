"""The beginner's version as a package: its size, its independence, documented scripts, seeds, and that it learns."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

import elegantrl_helloworld
from elegantrl_helloworld import demo, ppo_single_file
from elegantrl_helloworld.agent import AgentDQN, AgentPPO, AgentSAC, AgentTD3
from elegantrl_helloworld.env import GymEnv, build_env, get_gym_env_args
from elegantrl_helloworld.run import Config, Evaluator, get_returns, train_and_evaluate

FOLDER = Path(elegantrl_helloworld.__file__).parent
FILES = sorted(FOLDER.rglob("*.py"))
SHORT = {
    "break_step": 200,
    "eval_per_step": 100,
    "eval_times": 1,
    "test_times": 2,
    "horizon_len": 16,
    "buffer_init_size": 64,
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run_python(*words, code=0):
    env = {**os.environ, "PYTHONPATH": str(FOLDER.parent)}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=env)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


# ---- the package


def test_it_has_less_than_1000_lines():
    assert {path.name for path in FILES} >= {"net.py", "agent.py", "env.py", "run.py", "demo.py", "ppo_single_file.py"}
    assert sum(len(path.read_text().splitlines()) for path in FILES) < 1000


def test_it_imports_nothing_of_the_library():
    allowed = {"torch", "numpy", "gymnasium", "matplotlib", *sys.stdlib_module_names}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.partition(".")[0] for alias in node.names} <= allowed, path
            elif isinstance(node, ast.ImportFrom) and not node.level:
                assert node.module.partition(".")[0] in allowed, path
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 1 and path.name != "ppo_single_file.py", path
    names = ", ".join(f"elegantrl_helloworld.{path.stem}" for path in FILES if path.stem != "__init__")
    run_python("-c", f"import sys; sys.modules['elegantrl'] = None; import {names}")


# ---- scripts of the documents, restated


@pytest.mark.filterwarnings("ignore:Pendulum-v0 is retired:UserWarning")
def test_quickstart(capsys):
    found: dict = {}
    exec("from elegantrl_helloworld.demo import *", found)
    level = gym.logger.min_level
    found["gym"].logger.set_level(40)
    gym.logger.min_level = level
    env = found["PendulumEnv"]("Pendulum-v0", target_return=-500)
    args = found["Arguments"](found["AgentSAC"], env)
    args.reward_scale = 2**-1
    args.gamma = 0.97
    args.target_step = args.max_step * 2
    args.eval_times = 2**3
    assert (args.horizon_len, args.target_return, args.env_name) == (400, -500, "Pendulum-v1")
    args.break_step, args.num_envs, args.repeat_times, args.buffer_init_size = 600, 1, 0.1, 300
    result = found["train_and_evaluate"](args)
    assert "AgentSAC learns Pendulum-v1: at most 600 steps" in capsys.readouterr().out
    assert result.steps == 800 and result.cwd == "runs/Pendulum-v1_AgentSAC_0"
    assert {path.name for path in Path(result.cwd).iterdir()} == {"actor.pth", "recorder.npy", "LearningCurve.jpg"}


def test_main_of_the_demonstrations():
    """A global ENV_ID of the script selects the environment."""
    Path("script.py").write_text(
        "from elegantrl_helloworld import demo\n"
        "from elegantrl_helloworld.demo import *\n"
        f"demo.DEMOS['continuous_on'][1][3][1].update({SHORT})\n"
        "if __name__ == '__main__':\n"
        "    ENV_ID = 3\n"
        "    demo_continuous_action_on_policy()\n"
    )
    assert "AgentPPO learns BipedalWalker-v3: at most 200 steps" in run_python("script.py")
    assert Path("runs/BipedalWalker-v3_AgentPPO_0/LearningCurve.jpg").is_file()


@pytest.mark.parametrize("name", demo.DEMOS)
def test_every_demonstration_runs(name, capsys):
    function = getattr(demo, f"demo_{name.replace('_', '_action_')}_policy")
    envs = demo.DEMOS[name][1]
    for env_id, (env, _) in envs.items():
        result = function(env_id, **SHORT)
        assert 200 <= result.steps < 600 and np.isfinite(result.mean_return)
        assert f"learns {env}" in capsys.readouterr().out
    with pytest.raises(ValueError, match=rf"{name} has no environment 9; choose one of 1 \({envs[1][0]}\)"):
        function(9)


def test_command_line():
    text = run_python("-m", "elegantrl_helloworld.demo", "--help")
    assert "--seed" in text and "--steps" in text and "SAC  LunarLanderContinuous-v3" in text
    text = run_python("-m", "elegantrl_helloworld.demo", "discrete_on", "--steps", "600", "--seed", "3")
    assert "in 100 new episodes" in text and Path("runs/CartPole-v1_AgentPPO_3/LearningCurve.jpg").is_file()
    text = run_python("-m", "elegantrl_helloworld.demo", "discrete_on", "--env", "3", code=2)
    assert "discrete_on has no environment 3; choose one of 1 (CartPole-v1), 2 (LunarLander-v3)" in text


# ---- settings and environments


def test_forms_of_an_environment():
    facts = get_gym_env_args(gym.make("LunarLanderContinuous-v3"), if_print=False)
    assert (facts["state_dim"], facts["action_dim"], facts["if_discrete"]) == (8, 2, False)
    for args in (
        Config(AgentSAC, "LunarLanderContinuous-v3"),
        Config(AgentSAC, gym.make, facts),
        Config(AgentSAC, env_func=gym.make, env_args=facts),
        Config(AgentSAC, env=gym.make("LunarLanderContinuous-v3")),
        Config(AgentSAC, GymEnv, {"env": "LunarLanderContinuous-v3"}),
    ):
        assert (args.env_name, args.max_step, args.target_return) == ("LunarLanderContinuous-v3", 1000, 200)
    with pytest.warns(UserWarning, match="LunarLander-v2 is retired, LunarLander-v3 takes its place"):
        assert build_env("LunarLander-v2").env_name == "LunarLander-v3"


def test_facts_are_printed(capsys):
    get_gym_env_args("CartPole-v1", if_print=True)
    assert "    'env_name': 'CartPole-v1',\n    'max_step': 500,\n    'state_dim': 4," in capsys.readouterr().out


class TwoSwitches(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (2,))
    action_space = gym.spaces.MultiDiscrete([2, 2])


def test_mistakes_are_named():
    args = Config(AgentDQN, "CartPole-v1", net_dim=32, max_memo=500)
    assert (args.net_dims, args.buffer_size) == ([32, 32], 500)
    with pytest.raises(AttributeError, match=r"there is no setting 'learning_rat'; did you mean \['learning_rate'\]"):
        args.learning_rat = 1e-3
    with pytest.raises(ValueError, match='None is no environment: pass an id such as "CartPole-v1"'):
        Config(AgentDQN)
    with pytest.raises(ValueError, match=r"MultiDiscrete\(\[2 2\]\); HelloWorld needs Discrete, or a Box with bounds"):
        Config(AgentDQN, lambda: TwoSwitches())
    with pytest.raises(ValueError, match=r"TwoSwitches.* has no id: pass its class"):
        Config(AgentDQN, TwoSwitches())
    with pytest.raises(ValueError, match="AgentSAC cannot choose the discrete actions of CartPole-v1; use AgentDQN"):
        Config(AgentSAC, "CartPole-v1")
    with pytest.raises(ValueError, match="AgentDQN cannot choose the continuous actions of Pendulum-v1; use AgentSAC"):
        Config(AgentDQN, "Pendulum-v1")


# ---- learning


@pytest.mark.parametrize(
    ("agent", "env"),
    [(AgentDQN, "CartPole-v1"), (AgentTD3, "Pendulum-v1"), (AgentSAC, "Pendulum-v1"), (AgentPPO, "Pendulum-v1")],
)
def test_the_same_seed_gives_the_same_run(agent, env):
    def run(seed):
        result = train_and_evaluate(Config(agent, env, random_seed=seed, cwd="run", **SHORT))
        return [*np.load("run/recorder.npy")[:, [0, 2, 3]].flatten(), result.mean_return]

    first = run(1)
    assert run(1) == first and run(2) != first


def test_the_saved_policy_is_the_one_that_was_measured():
    args = Config(AgentPPO, "CartPole-v1", **SHORT)
    result = train_and_evaluate(args)
    agent = AgentPPO(args.net_dims, args.state_dim, args.action_dim, -1, args)
    agent.act.load_state_dict(torch.load(f"{result.cwd}/actor.pth", weights_only=True))
    assert get_returns(agent, args.make_env(), range(500_000, 500_002)).mean() == result.mean_return


def test_a_run_stops_at_its_target():
    """The second of two evaluations in a row that reach it."""
    result = train_and_evaluate(Config(AgentPPO, "CartPole-v1", **SHORT | {"target_return": 5, "break_step": 5_000}))
    assert result.steps == 512 and len(np.load(f"{result.cwd}/recorder.npy")) == 2


def test_the_best_policy_is_kept_and_of_equals_the_latest(monkeypatch):
    args = Config(AgentPPO, "CartPole-v1", eval_per_step=1)
    agent, evaluator = AgentPPO([8], 4, 2, -1, args), Evaluator(args)
    scores, kept = iter([10.0, 490.0, 20.0, 480.0, 490.0]), []
    monkeypatch.setattr("elegantrl_helloworld.run.get_returns", lambda *_: np.array([next(scores)]))
    env = type("Env", (), {"returns": []})
    for number in range(1, 6):
        agent.steps += 1
        torch.nn.init.constant_(agent.act.net[0].bias, number)
        evaluator.evaluate_and_save(agent, env, (0.0, 0.0))
        kept.append(torch.load(evaluator.cwd / "actor.pth", weights_only=True)["net.0.bias"][0].item())
    assert kept == [1, 2, 2, 2, 5] and evaluator.solved


def test_ppo_learns():
    settings = {**demo.DEMOS["discrete_on"][1][1][1], "target_return": 200}
    assert train_and_evaluate(Config(AgentPPO, "CartPole-v1", **settings)).mean_return > 150


def test_the_single_file_learns():
    assert ppo_single_file.train(max_steps=15_000) > 100

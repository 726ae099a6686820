"""Every script of the documents of the public ElegantRL, restated with a short budget and run for real.

A test imports by the paths and calls by the forms that its page uses. N1: none of these paths imported.
"""

import re
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from samples import Chase, short

import elegantrl
from elegantrl import build_env, check_env
from elegantrl.envs.tutorial import TutorialVecEnv
from elegantrl.errors import ConfigError
from elegantrl.testing import FakeVecTask


def namespace_of(*lines: str) -> dict:
    """What the given import statements bring."""
    found: dict = {}
    for line in lines:
        exec(line, found)
    return found


def has_result(cwd: str) -> bool:
    files = ("actor.pth", "recorder.npy", "plot_learning_curve.jpg", "summary.json")
    return all(Path(cwd, name).is_file() for name in files)


def play(env, agent, most=100) -> float:
    """One episode with the best known actions, drawn as the pages do."""
    state, total = env.reset(), 0.0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*render_mode")
        for _ in range(most):
            state, reward, done, _ = env.step(agent.select_action(state))
            total += reward
            if done:
                break
            env.render()
    return total


# ---- the pages of the algorithms


PAGES = [
    ("AgentDQN", "CartPole-v0", {"target_return": 195}),
    ("AgentDoubleDQN", "CartPole-v0", {"target_return": 195}),
    ("AgentDDPG", "Pendulum-v0", {"reward_scale": 2**-2}),
    ("AgentTD3", "Pendulum-v0", {"reward_scale": 2**-2}),
    ("AgentSAC", "Pendulum-v0", {"reward_scale": 2**-2}),
    ("AgentA2C", "Pendulum-v0", {"reward_scale": 2**-2}),
    ("AgentPPO", "BipedalWalker-v3", {"reward_scale": 2**-2}),
]


@pytest.mark.parametrize(("name", "env_id", "settings"), PAGES, ids=[page[0] for page in PAGES])
@pytest.mark.filterwarnings("ignore:.* is retired; .* takes its place:UserWarning")
def test_page_of_an_algorithm(name, env_id, settings):
    found = namespace_of(
        "from elegantrl.run import train_and_evaluate",
        "from elegantrl.config import Arguments",
        "from elegantrl.train.config import build_env",
        f"from elegantrl.agents.{name} import {name}",
    )
    agent_class, build_env = found[name], found["build_env"]
    args = found["Arguments"](env=build_env(env_id), agent=agent_class())
    args.cwd = f"demo_{name}"
    if "target_return" in settings:
        args.target_return = settings["target_return"]
    else:
        args.env.target_return = 300 if name == "AgentPPO" else -200
        args.reward_scale = settings["reward_scale"]
    if name == "AgentDQN":
        args.agent.if_use_dueling = True
    if name == "AgentPPO":
        args.target_step = 600  # its tuned rollout is the budget of a longer test
    found["train_and_evaluate"](short(args))
    assert has_result(args.cwd)

    agent = agent_class()
    agent.init(args.net_dim, args.state_dim, args.action_dim)
    agent.save_or_load_agent(cwd=args.cwd, if_save=False)
    total = play(build_env(env_id), agent)
    assert np.isfinite(total)


@pytest.mark.filterwarnings("ignore:.* is retired; .* takes its place:UserWarning")
def test_page_of_redq():
    """The page trains in Hopper and then plays Pendulum, which cannot be; the agent says so."""
    from elegantrl.agents.AgentREDQ import AgentREDQ
    from elegantrl.run import train_and_evaluate
    from elegantrl.train.config import build_env

    from elegantrl.config import Arguments

    args = Arguments(env=build_env("Hopper-v2"), agent=AgentREDQ())
    args.cwd = "demo_Hopper_REDQ"
    args.buffer_init_size, args.repeat_times, args.net_dim = 500, 1, 32
    train_and_evaluate(short(args))
    agent = AgentREDQ()
    agent.init(args.net_dim, args.state_dim, args.action_dim)
    agent.save_or_load_agent(cwd=args.cwd, if_save=False)
    play(build_env("Hopper-v2"), agent)
    with pytest.raises(ConfigError, match=r"a state of shape \(3,\) does not fit an agent of state_dim=11"):
        agent.select_action(build_env("Pendulum-v0").reset())


def test_page_of_the_config():
    from elegantrl.agents.AgentPPO import AgentPPO
    from elegantrl.train.config import Arguments, build_env

    args = Arguments(build_env("Pendulum-v1"), AgentPPO())
    assert (args.env_name, args.agent_class, args.if_discrete) == ("Pendulum-v1", AgentPPO, False)


def test_page_of_the_run():
    from elegantrl.agents.AgentPPO import AgentPPO
    from elegantrl.envs.Chasing import ChasingEnv
    from elegantrl.train.config import Arguments
    from elegantrl.train.run import train_and_evaluate_mp

    args = Arguments(agent=AgentPPO(), env_func=ChasingEnv)
    result = train_and_evaluate_mp(short(args))
    assert has_result(args.cwd) and result.summary["executor"] == "process"


# ---- the tutorials


@pytest.mark.filterwarnings("ignore:LunarLanderContinuous-v2 is retired:UserWarning")
def test_lunar_lander(capsys):
    found = namespace_of("from elegantrl.run import *")
    gym = found["gym"]
    found["get_gym_env_args"](gym.make("LunarLanderContinuous-v2"), if_print=True)
    assert "'target_return': 200" in capsys.readouterr().out
    env_args = {"env_num": 1, "env_name": "LunarLanderContinuous-v2", "max_step": 1000, "state_dim": 8}
    wrong = {"action_dim": 4, "if_discrete": True}  # as the page prints them
    with pytest.warns(UserWarning, match="LunarLanderContinuous") as caught:
        args = found["Arguments"](
            found["AgentModSAC"],
            env_func=gym.make,
            env_args=env_args | wrong | {"target_return": 200, "id": "LunarLanderContinuous-v2"},
        )
    told = " ".join(str(warning.message) for warning in caught)
    assert "action_dim=4, but LunarLanderContinuous-v3 has 2, which counts" in told
    assert "if_discrete=True, but LunarLanderContinuous-v3 has False, which counts" in told
    args.target_step = args.max_step
    args.gamma = 0.99
    args.eval_times = 2**5
    assert args.run_config().eval.episodes == 32
    args.batch_size, args.net_dim = 32, 32
    found["train_and_evaluate"](short(args))
    assert has_result(args.cwd)


def walker(found: dict):
    """The arguments of the tutorial, with a short budget."""
    gym = found["gym"]
    found["get_gym_env_args"](gym.make("BipedalWalker-v3"), if_print=False)
    env_args = {
        "env_num": 1,
        "env_name": "BipedalWalker-v3",
        "max_step": 1600,
        "state_dim": 24,
        "action_dim": 4,
        "if_discrete": False,
        "target_return": 300,
        "id": "BipedalWalker-v3",
    }
    args = found["Arguments"](found["AgentPPO"], env_func=gym.make, env_args=env_args)
    args.target_step = args.max_step * 4
    args.gamma = 0.98
    args.eval_times = 2**4
    args.target_step, args.num_envs = 64, 4
    return short(args)


MODES = {
    "single process": (0, "there is no GPU 0; one learner trains on the CPU"),
    "processes": (0, "there is no GPU 0; one learner trains on the CPU"),
    "GPUs": ([0, 1, 2, 3], r"no GPU for learner_gpus=\[0, 1, 2, 3\]; one learner trains on the CPU"),
    "tournament": ([[0], [1]], "there is no GPU 0; one learner trains on the CPU"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_bipedal_walker_in_four_modes(mode):
    found = namespace_of("from elegantrl.run import *")
    args = walker(found)
    args.learner_gpus, sentence = MODES[mode]
    with pytest.warns(UserWarning) as caught:
        if mode == "single process":
            result = found["train_and_evaluate"](args)
        elif mode == "tournament":
            result = found["train_and_evaluate_mp"](args, ".../bin/python3")
        else:
            result = found["train_and_evaluate_mp"](args)
    assert [w for w in caught if re.search(sentence, str(w.message))]
    if mode == "tournament":
        assert result.summary["mode"] == "tournament" and result.summary["periods"] == 8
        assert Path(args.cwd, "actor.pth").is_file() and Path(args.cwd, "leaderboard.json").is_file()
    else:
        assert has_result(args.cwd)
        assert result.summary["executor"] == ("inline" if mode == "single process" else "process")


def test_isaac_gym_and_its_tournament():
    """Isaac Gym is not here: its names import, and using one says so in a sentence."""
    from elegantrl.agents.AgentPPO import AgentPPO
    from elegantrl.envs.IsaacGym import IsaacOneEnv, IsaacVecEnv
    from elegantrl.train.config import Arguments

    env_args = {"env_num": 4096, "env_name": "Ant", "max_step": 1000, "state_dim": 60, "action_dim": 8}
    env_args |= {"if_discrete": False, "target_return": 14000.0, "device_id": None, "if_print": False}
    for agent in (AgentPPO, AgentPPO()):
        with pytest.raises(ImportError, match="IsaacVecEnv needs NVIDIA Isaac Gym"):
            Arguments(agent=agent, env_func=IsaacVecEnv, env_args=env_args)
    with pytest.raises(ImportError, match="IsaacOneEnv needs NVIDIA Isaac Gym"):
        IsaacOneEnv("Ant")


@pytest.fixture
def isaac_gym(monkeypatch):
    """A package that makes tasks like IsaacGymEnvs; the list of what it made."""
    made = []

    def make(seed, task, num_envs, sim_device, rl_device, graphics_device_id=-1, headless=False, force_render=True):
        made.append((task, num_envs, sim_device, rl_device, headless))
        return FakeVecTask(num_envs, rl_device)

    monkeypatch.setitem(sys.modules, "isaacgym", ModuleType("isaacgym"))
    monkeypatch.setitem(sys.modules, "isaacgymenvs", SimpleNamespace(make=make))
    return made


@pytest.mark.filterwarnings("ignore")  # what is documented and has another meaning or none here
def test_isaac_gym_as_documented(isaac_gym):
    """The page with a task that is a fake, but with the interface of Isaac Gym; other processes would not find it."""
    import isaacgym  # noqa: F401
    from elegantrl.agents.AgentPPO import AgentPPO
    from elegantrl.envs.IsaacGym import IsaacOneEnv, IsaacVecEnv
    from elegantrl.run import train_and_evaluate
    from elegantrl.train.config import Arguments

    env_args = {
        "env_num": 64,
        "env_name": "Ant",
        "max_step": 10,
        "state_dim": 3,
        "action_dim": 1,
        "if_discrete": False,
        "target_return": 14000.0,
        "device_id": None,
        "if_print": False,
    }
    args = Arguments(agent=AgentPPO, env_func=IsaacVecEnv, env_args=env_args)
    args.eval_env_func = IsaacOneEnv
    args.eval_env_args = args.env_args.copy()
    args.eval_env_args["env_num"] = 1
    args.net_dim = 2**4
    args.batch_size = args.net_dim * 4
    args.target_step = args.max_step
    args.repeat_times = 2**4
    args.save_gap = 2**9
    args.eval_gap = 2**8
    args.eval_times1 = 2**0
    args.eval_times2 = 2**2
    args.worker_num = 1
    args.learner_gpus = 0
    args.break_step = 2000
    result = train_and_evaluate(args)
    assert result.summary["num_envs"] == 64 and result.summary["episodes"] > 64 and has_result(args.cwd)
    assert {(task, sim, rl) for task, _, sim, rl, _ in isaac_gym} == {("Ant", "cpu", "cpu")}
    assert all(headless for *_, headless in isaac_gym)


def test_isaac_environments_by_hand(isaac_gym, capsys):
    """Guards against: E9, wrappers that step or reset twice."""
    env = elegantrl.IsaacVecEnv("Ant", env_num=8, device_id=-1, if_print=True)
    assert "'env_name': 'Ant'" in capsys.readouterr().out
    assert (env.env_num, env.state_dim, env.action_dim, env.if_discrete, env.target_return) == (8, 3, 1, False, 14e3)
    state = env.reset()
    for step in range(1, 4):
        state, reward, done, _ = env.step(torch.zeros(8, 1))
        going = ~done
        assert state.shape == (8, 3) and (state[going, 2] == step).all() and reward.shape == (8,)
    one = elegantrl.IsaacOneEnv("Ant", device_id=-1, if_print=False)
    state = one.reset()
    assert isinstance(state, np.ndarray) and state[2] == 0
    state, reward, done, _ = one.step(np.zeros(1))
    assert state.shape == (3,) and state[2] == 1 and isinstance(reward, float) and done is False


def test_settings_of_the_isaac_pages_with_another_vector_environment():
    """The rest of those pages, in an environment that is here."""
    from elegantrl.agents.AgentPPO import AgentPPO
    from elegantrl.envs.Chasing import ChasingEnv, ChasingVecEnv
    from elegantrl.train.config import Arguments
    from elegantrl.train.run import train_and_evaluate_mp

    args = Arguments(agent=AgentPPO(), env_func=ChasingVecEnv, env_args={"env_num": 64, "device_id": -1})
    args.agent.if_use_old_traj = False
    args.eval_env_func = ChasingEnv
    args.eval_env_args = {}
    args.net_dim = 2**5
    args.batch_size = args.net_dim * 4
    args.target_step = 16
    args.repeat_times = 2**1
    args.save_gap, args.eval_gap = 2**9, 2**8
    args.eval_times1, args.eval_times2 = 2**0, 2**2
    args.worker_num = 1
    args.learner_gpus = [(-1,) for _ in range(2)]
    args.break_step = 2000
    result = train_and_evaluate_mp(args, python_path=".../bin/python3")
    assert result.summary["members"] == 8 and len(result.summary["leaderboard"]) > 1
    assert Path(args.cwd, "actor.pth").is_file()
    assert result.load_policy().config.env.num_envs == 64


# ---- the tutorial of vector environments


@pytest.mark.parametrize("as_instance", [False, True])
def test_a_vector_environment_as_the_tutorial_writes_it(as_instance):
    """N11: it was refused."""
    from elegantrl.agents.AgentPPO import AgentPPO
    from elegantrl.run import Arguments, train_and_evaluate

    if as_instance:
        args = Arguments(AgentPPO, env=Chase(env_num=8))
    else:
        args = Arguments(AgentPPO, env_func=Chase, env_args={"env_num": 8, "dim": 2})
    assert (args.env_num, args.state_dim, args.max_step, args.target_return) == (8, 8, 32, 6.3)
    args.target_step, args.net_dim = 16, 16
    result = train_and_evaluate(short(args))
    assert result.summary["num_envs"] == 8 and result.summary["episodes"] > 8 and has_result(args.cwd)


def test_a_vector_environment_of_the_tutorial_in_processes():
    from elegantrl.agents.AgentPPO import AgentPPO
    from elegantrl.run import Arguments, train_and_evaluate_mp

    args = Arguments(AgentPPO, env_func=Chase, env_args={"env_num": 8})
    args.target_step, args.net_dim, args.worker_num = 16, 16, 2
    assert train_and_evaluate_mp(short(args)).summary["num_envs"] == 16


def test_a_vector_environment_of_the_tutorial_keeps_the_contract():
    assert build_env(Chase).num_envs == 4096
    env = TutorialVecEnv(Chase(env_num=6))
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    check_env(env)
    assert torch.equal(torch.get_rng_state(), before[0]) and (np.random.get_state()[1] == before[1]).all()
    env.reset(3)
    steps = [env.step(torch.zeros(6, 2)) for _ in range(32)]
    cut = steps[-1].truncated
    assert cut.any() and not (cut & steps[-1].terminated).any()
    # A successor that is not known is the state before, never that of the next episode.
    assert torch.equal(steps[-1].next_obs[cut], steps[-2].obs[cut])
    assert not torch.equal(steps[-1].obs[cut], steps[-1].next_obs[cut])


def test_the_scripts_of_the_migration_page():
    text = (Path(__file__).parents[2] / "docs" / "migration.md").read_text()
    by_run, by_hand = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    found: dict = {}
    exec(by_run.replace("train_and_evaluate(args)", "args.break_step = 600; train_and_evaluate(args)"), found)
    exec(by_hand.replace("range(10)", "range(2)"), found)
    assert Path("by_hand/actor.pth").is_file() and np.isfinite(found["losses"]).all()

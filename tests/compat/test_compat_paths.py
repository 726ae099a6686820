"""Documented names and module paths."""

import copy
import importlib
import inspect
import os
import pickle
import pydoc
import subprocess
import sys
import typing
import warnings
from pathlib import Path

import gymnasium as gym
import pytest

import elegantrl
from elegantrl import (
    AgentPPO,
    Arguments,
    ChasingVecEnv,
    Config,
)
from elegantrl.compat.names import AGENTS
from elegantrl.compat.paths import PATHS
from elegantrl.runtime.train import train


def test_names_are_complete_and_lazy():
    from elegantrl import compat

    assert set(compat.__all__) <= set(elegantrl.__all__) <= set(dir(elegantrl))
    namespace: dict = {}
    exec("from elegantrl import *", namespace)
    assert set(elegantrl.__all__) <= namespace.keys()
    assert Arguments is Config
    for name in compat.LATER:
        assert not hasattr(elegantrl, name)
        with pytest.raises(AttributeError, match=f"{name} is not available"):
            getattr(elegantrl, name)
        for path in ("elegantrl", "elegantrl.run", "elegantrl.train", "elegantrl.train.worker"):
            with pytest.raises(ImportError, match=f"{name} is not available"):
                exec(f"from {path} import {name}")
    with pytest.raises(AttributeError, match=r"did you mean .*'AgentPPO'"):
        _ = elegantrl.AgentPO
    assert not hasattr(elegantrl, "__wrapped__")


def in_a_new_process(code):
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_importing_the_library_imports_nothing_else():
    """N15: the command line must not wait for torch before it can show its help."""
    heavy = {"torch", "numpy", "gymnasium", "matplotlib", "elegantrl.compat"}
    in_a_new_process(f"import elegantrl, sys; assert not {heavy!r} & sys.modules.keys()")


def test_rooms_are_attributes_without_an_import_of_their_own():
    in_a_new_process("import elegantrl; elegantrl.envs.TensorEnv, elegantrl.errors.ConfigError")


@pytest.mark.parametrize("path", PATHS)
def test_every_documented_path_imports(path):
    """N1: documented module paths did not import."""
    module = importlib.import_module(path)
    assert module.__name__ == path and importlib.import_module(path) is module
    namespace: dict = {}
    exec(f"from {path} import *", namespace)
    assert set(PATHS[path]) <= namespace.keys() and set(PATHS[path]) <= set(dir(module))
    with pytest.raises(AttributeError, match=f"{path} has no no_such_name"):
        _ = module.no_such_name
    assert pickle.loads(pickle.dumps(module)) is module


@pytest.mark.parametrize("name", [*AGENTS, "AgentBase"])
def test_an_agent_is_the_same_class_wherever_it_is_imported_from(name):
    module = importlib.import_module(f"elegantrl.agents.{name}")
    found = getattr(module, name)
    assert isinstance(found, type) and found is getattr(elegantrl, name)
    # ``from elegantrl.agents import AgentX`` gives the module, which stands for its class.
    assert issubclass(subclass_of(module), found)
    if name != "AgentBase":
        assert isinstance(module(), found) and Config(module).agent_class is found


def subclass_of(base):
    class Mine(base):
        pass

    return Mine


def test_a_first_import_by_any_path():
    lines = (
        "from elegantrl.train.config import Arguments",
        "import elegantrl.train.run as r; r.train_and_evaluate_mp",
        "import elegantrl; from elegantrl.config import build_env, Config; assert Config is elegantrl.Config",
        "from elegantrl.agents.AgentPPO import AgentPPO; from elegantrl.agents import AgentDQN; AgentDQN()",
    )
    # Each in a child of a process that has imported what takes seconds and nothing of ours.
    in_a_new_process(
        f"import os, torch, gymnasium\n"
        f"for line in {lines!r}:\n"
        f"    child = os.fork()\n"
        f"    if not child:\n"
        f"        exec(line); os._exit(0)\n"
        f"    assert os.waitpid(child, 0)[1] == 0, line"
    )


def test_train_is_a_function_and_a_module():
    assert elegantrl.train is importlib.import_module("elegantrl.train")
    assert callable(elegantrl.train) and not callable(importlib.import_module("elegantrl.run"))
    assert inspect.signature(elegantrl.train) == inspect.signature(train)
    assert typing.get_type_hints(elegantrl.train) == typing.get_type_hints(train)
    assert inspect.getdoc(elegantrl.train) == inspect.getdoc(train)
    assert "Train an agent" in pydoc.render_doc(elegantrl.train)
    assert "def train(" in inspect.getsource(elegantrl.train)
    assert copy.deepcopy(elegantrl.train) is elegantrl.train
    result = elegantrl.train("ppo", "CartPole-v1", max_steps=500)
    assert result.summary["agent"] == "ppo"


@pytest.mark.slow  # mypy begins without its cache
def test_a_type_checker_sees_the_function(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import elegantrl\nreveal_type(elegantrl.train)\nreveal_type(elegantrl.RunConfig)\n")
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(tmp_path), str(script)]
    env = {**os.environ, "MYPYPATH": str(Path(elegantrl.__file__).parents[1])}
    text = subprocess.run(command, capture_output=True, text=True, env=env).stdout
    assert "def (agent:" in text and "RunConfig" in text, text


def test_modules_of_processes_say_that_there_is_nothing_to_do():
    module = importlib.import_module("elegantrl.train.worker")
    assert not hasattr(module, "PipeWorker")
    with pytest.raises(AttributeError, match="PipeWorker is not available: train_and_evaluate_mp"):
        _ = module.PipeWorker
    with pytest.raises(ImportError, match="AgentEmbedDQN is not available in this version"):
        exec("from elegantrl.agents.AgentEmbedDQN import AgentEmbedDQN")


def test_gym_is_gymnasium_in_star_imports_alone():
    namespace: dict = {}
    exec("from elegantrl.run import *", namespace)
    theirs = namespace["gym"]
    assert theirs.Env is gym.Env and "gym" not in sys.modules
    before = gym.logger.min_level
    theirs.logger.set_level(40)
    assert gym.logger.min_level == 40
    theirs.logger.set_level(before)
    with pytest.warns(UserWarning, match="CartPole-v0 is retired; CartPole-v1 takes its place"):
        assert theirs.make("CartPole-v0").spec.id == "CartPole-v1"


def test_nothing_here_warns_by_itself():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Config(AgentPPO, "CartPole-v1").run_config()
        ChasingVecEnv(env_num=2).reset()

"""The run folder of documented scripts."""

from pathlib import Path

import pytest
from samples import Line, short

from elegantrl import (
    AgentPPO,
    Config,
    train_agent,
)
from elegantrl.errors import CheckpointError, ConfigError


def test_no_folder_is_deleted_unasked():
    # Guards against: K3, a folder that is deleted unasked.
    keep = Path("results")
    keep.mkdir()
    (keep / "thesis.txt").write_text("mine")
    args = short(Config(AgentPPO, Line))
    args.cwd = keep
    train_agent(args)
    assert (keep / "thesis.txt").exists()
    with pytest.raises(ConfigError, match="already holds a run; set continue_train"):
        train_agent(args)
    args.if_remove = True
    train_agent(args)
    assert not (keep / "thesis.txt").exists()


def test_a_folder_that_is_none_of_ours_is_never_deleted():
    # Guards against: K3, a folder that is deleted unasked.
    args = short(Config(AgentPPO, Line))
    args.if_remove = True
    Path("other").mkdir()
    Path("other/config.yaml").write_text("wheels: 4\n")
    args.cwd = "other"
    with pytest.raises(CheckpointError, match="wheels"):
        train_agent(args)
    Path("config.yaml").write_text(args.run_config().to_yaml())
    args.cwd = "."
    with pytest.raises(ConfigError, match="holds the working folder"):
        train_agent(args)
    args.continue_train = True
    with pytest.raises(ConfigError, match="contradict"):
        train_agent(args)


def test_the_default_folder_is_a_fresh_one():
    args = short(Config(AgentPPO, Line))
    assert args.cwd == "./Line_PPO_0"
    assert train_agent(args).run_dir == Path("Line_PPO_0")
    again = short(Config(AgentPPO, Line))
    assert again.cwd == "./Line_PPO_0_2"


def test_continue_train_goes_on():
    args = short(Config(AgentPPO, Line))
    args.continue_train = True
    first = train_agent(args).summary["env_steps"]
    args = short(Config(AgentPPO, Line))
    args.continue_train, args.break_step = True, 3 * first
    assert train_agent(args).summary["env_steps"] >= 3 * first
    assert args.cwd == "./Line_PPO_0"

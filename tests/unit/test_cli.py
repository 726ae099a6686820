"""The command line in normal use: what it writes, prints and explains."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import matplotlib.image
import numpy as np
import pytest
import torch
import yaml
from rich.console import Console

import elegantrl
from elegantrl.cli.main import main
from elegantrl.cli.parse import parse_kwargs
from elegantrl.cli.train import parse_run
from elegantrl.config.fields import used_fields
from elegantrl.config.recipes import tuned_environments
from elegantrl.config.run import RunConfig
from elegantrl.config.sections import SECTIONS
from elegantrl.envs import env_names
from elegantrl.registry import agent_names, find_agent
from elegantrl.report import plot as plot_module
from elegantrl.roles.evaluator import Score
from elegantrl.runtime.display import PLAIN_SECONDS, RunDisplay
from elegantrl.runtime.progress import Progress
from elegantrl.runtime.train import prepare
from elegantrl.store.commits import Store
from elegantrl.store.loggers import LOGGERS
from elegantrl.store.runlog import RECORDER_COLUMNS
from elegantrl.store.trained import TrainedPolicy

LoadCommit = Callable[[Path], dict[str, Any]]
HashState = Callable[[Any], str]


Cli = Callable[..., Any]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot_module, "plot_run", lambda *_: None)
    monkeypatch.setitem(LOGGERS, "tensorboard", lambda run: Mock())


SMALL = ("--max-steps", 600, "--eval.interval", 250, "--eval.episodes", 3, "--target-return", "inf")
WARM = ("--agent.learning-starts", 100, "--agent.updates-per-step", 0.1, "--agent.batch-size", 16)
RUNS = {"ppo": ("CartPole-v1",), "a2c": ("CartPole-v1",), "dqn": ("CartPole-v1", *WARM), "sac": ("Pendulum-v1", *WARM)}


# ---- train


@pytest.mark.parametrize("agent", RUNS)
def test_train_leaves_a_complete_folder(cli: Cli, tmp_path: Path, agent: str) -> None:
    # Guards against: R16, TensorBoard files that nothing switches on.
    env, *flags = RUNS[agent]
    run = tmp_path / "run"
    outcome = cli("train", agent, env, *flags, "--run-dir", run, "--seed", 3, *SMALL)
    assert (outcome.code, outcome.err) == (0, "")
    assert f"{agent} on {env}, seed 3" in outcome.out
    assert "tuned settings for this pair (source: " in outcome.out
    assert "evaluation" in outcome.out and "best" in outcome.out
    assert f"run folder      {run}" in outcome.out and f"elegantrl eval {run}" in outcome.out

    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["agent"]["name"] == agent and config["env"]["id"] == env and config["train"]["seed"] == 3
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["agent"], summary["env"], summary["seed"]) == (agent, env, 3)
    assert summary["stop_reason"] == "max_steps" and summary["env_steps"] >= 600
    assert summary["updates"] > 0 and summary["wall_seconds"] > 0 and summary["steps_per_second"] > 0
    assert np.isfinite([summary["best_return"], summary["final_return"]]).all()
    assert summary["selected_return"] >= summary["final_return"]
    assert {"elegantrl", "python", "torch", "numpy", "gymnasium"} <= set(summary["versions"])

    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {row["kind"] for row in rows} == {"train", "eval"}
    evaluations = [row for row in rows if row["kind"] == "eval"]
    assert evaluations[-1]["env_steps"] == summary["env_steps"]
    recorder = np.load(run / "recorder.npy", allow_pickle=False)
    assert recorder.shape == (len(evaluations), len(RECORDER_COLUMNS)) and len(evaluations) >= 2
    assert recorder[:, 1].max() == pytest.approx(summary["selected_return"])

    weights = torch.load(run / "actor.pth", weights_only=True)
    assert weights and all(torch.is_tensor(x) and x.isfinite().all() for x in weights.values())
    picture = matplotlib.image.imread(run / "plot_learning_curve.jpg")
    assert (run / "plot_learning_curve.jpg").read_bytes()[:3] == b"\xff\xd8\xff"
    assert min(picture.shape[:2]) > 200 and picture.std() > 1
    assert list((run / "tensorboard").glob("events.out.tfevents.*"))
    commit = Store(run).latest_valid()
    assert commit is not None and commit.step == summary["env_steps"]
    assert {"learner", "supervisor", "group0"} <= set(commit.parts)
    assert not list(run.rglob(".tmp-*"))


def test_general_settings_are_named_too(cli: Cli, quick: None, tmp_path: Path) -> None:
    outcome = cli(
        "train", "a2c", "MountainCar-v0", "--run-dir", tmp_path / "run", *SMALL, "--eval.max-episode-steps", 20
    )
    assert outcome.code == 0
    assert "16 environments in this process; general settings of a2c (no tuned ones for MountainCar-v0)" in outcome.out


def test_a_run_without_a_folder_gets_one(
    cli: Cli, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert cli("train", "a2c", "TensorCartPole", "--seed", 4, *SMALL).code == 0
    assert sorted(os.listdir("runs")) == ["a2c_TensorCartPole_seed4", "a2c_TensorCartPole_seed4_2"]


def test_a_config_file_repeats_a_run(
    cli: Cli, quick: None, tmp_path: Path, load_commit: LoadCommit, hash_state: HashState
) -> None:
    assert cli("train", "ppo", "CartPole-v1", "--run-dir", tmp_path / "a", "--agent.clip", 0.3, *SMALL).code == 0
    outcome = cli("train", "--run-dir", tmp_path / "b", "--config", tmp_path / "a/config.yaml")
    assert outcome.code == 0
    assert f"settings of {tmp_path / 'a/config.yaml'}" in outcome.out
    assert (tmp_path / "a/config.yaml").read_bytes() == (tmp_path / "b/config.yaml").read_bytes()
    for part in ("learner", "group0"):
        assert hash_state(load_commit(tmp_path / "a")[part]) == hash_state(load_commit(tmp_path / "b")[part])


OWN_ENV = '''
import gymnasium as gym
import numpy as np


class Walk(gym.Env):
    """Right is good."""

    observation_space = gym.spaces.Box(-100, 100, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length=10, name="walk"):
        self.length, self.name = length, name

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.position += 1 if action == 1 else -1
        self.time += 1
        return np.array([self.position], np.float32), float(action), False, self.time >= self.length, {"n": self.name}
'''


def test_an_environment_of_your_own(cli: Cli, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_walk.py").write_text(OWN_ENV)
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "[red]run[/red] :cat:"  # neither markup nor an emoji
    outcome = cli(
        "train", "ppo", "own_walk:Walk", "--env-kwargs", "length=7", "name=blue", "--run-dir", run, *SMALL
    )  # fmt: skip
    assert (outcome.code, outcome.err) == (0, "")
    assert f"run folder      {run}" in outcome.out
    assert yaml.safe_load((run / "config.yaml").read_text())["env"]["kwargs"] == {"length": 7, "name": "blue"}
    result = json.loads(cli("eval", run, "--env", "own_walk:Walk", "--json", "--episodes", 4).out)
    assert result["env"] == "own_walk:Walk"
    assert len(result["returns"]) == 4 and all(0 <= x <= 7 for x in result["returns"])


def test_values_of_env_kwargs() -> None:
    assert parse_kwargs(["a=1", "b=0.5", "c=text", "d=true", "e=[1, 2]", "f=x=y", "g=", "h='1'"]) == {
        "a": 1, "b": 0.5, "c": "text", "d": True, "e": [1, 2], "f": "x=y", "g": None, "h": "1",
    }  # fmt: skip


def configured(agent: str, env: str, words: str) -> RunConfig:
    """The config of a command line."""
    return prepare(agent, env, parse_run(agent, env, words.split())[1]).config


def test_envs_per_worker_says_environments_and_groups() -> None:
    words = "--executor process --num-workers 3 --envs-per-worker 4 --role-timeout 5 --max-restarts 2"
    config = configured("ppo", "CartPole-v1", words)
    assert (config.env.num_envs, config.num_groups, config.execute.executor) == (12, 3, "process")
    assert (config.execute.num_learners, config.num_learners) == (0, 1)
    assert (config.execute.num_workers, config.execute.role_timeout, config.execute.max_restarts) == (3, 5.0, 2)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--envs-per-worker 0", "--envs-per-worker 0 is too few"),
        ("--envs-per-worker 2 --num-envs 64", "leave --num-envs and --num-groups out"),
        ("--num-workers 3 --num-envs 4", "env.num_envs=4 cannot be divided equally among 3 groups"),
        ("--num-workers 3 --num-groups 2", "execute.num_workers=3 is more than the 2 groups"),
        ("--executor threads", "threads"),
        ("--executor inline --num-learners 2", "add --executor process"),
        ("--executor process --num-learners 2 --num-envs 4", "use --num-groups 2"),
    ],
)
def test_layouts_that_do_not_work_out(cli: Cli, tmp_path: Path, words: str, sentence: str) -> None:
    outcome = cli("train", "ppo", "CartPole-v1", "--run-dir", tmp_path / "run", *words.split())
    assert outcome.code == 2 and sentence in outcome.sentence
    assert not (tmp_path / "run").exists()


def test_a_setting_about_processes_asks_for_processes() -> None:
    for words in ("--num-workers 2", "--max-lag 1", "--num-learners 1", "--executor process"):
        assert configured("ppo", "CartPole-v1", words).execute.executor == "process"
    assert configured("ppo", "CartPole-v1", "--executor inline --num-workers 2").execute.num_workers == 2


def test_async_says_several_things_at_once() -> None:
    fresh = configured("ppo", "CartPole-v1", "--async --num-workers 4")
    assert (fresh.execute.executor, fresh.execute.max_lag, fresh.execute.sync_frac) == ("process", 1, 0.5)
    assert fresh.agent.vtrace  # type: ignore[attr-defined]
    replay = configured("sac", "Pendulum-v1", "--async --max-lag 3")
    assert (replay.execute.executor, replay.execute.max_lag, replay.execute.sync_frac) == ("process", 3, 1.0)


def test_every_setting_reaches_the_config() -> None:
    argv = "--num-envs 3 --max-steps 7 --max-seconds 1.5 --target-return -2 --patience 4 --seed 5 --num-threads 2"
    argv += " --agent.hidden 8 9 --agent.lr 1e-3 --agent.normalize-obs --agent.no-normalize-advantage"
    argv += " --agent.target-kl 0.01 --eval.interval 11 --checkpoint.keep 6 --run-dir x --resume"
    argv += " --env-kwargs a=1 --eval.env-kwargs b=2 --eval.env-id Other-v0 --gradients autograd --executor inline"
    flags, _ = parse_run("ppo", "CartPole-v1", argv.split())
    config = configured("ppo", "CartPole-v1", argv)
    assert (config.env.num_envs, config.train.max_steps, config.train.max_seconds) == (3, 7, 1.5)
    assert (config.train.target_return, config.train.patience, config.train.num_threads) == (-2.0, 4, 2)
    assert (config.train.seed, config.eval.interval, config.checkpoint.keep) == (5, 11, 6)
    assert (config.env.kwargs, config.eval.env_kwargs, config.eval.env_id) == ({"a": 1}, {"b": 2}, "Other-v0")
    assert (config.train.gradients, config.execute.executor) == ("autograd", "inline")
    agent = config.agent
    assert (agent.hidden, agent.lr, agent.normalize_obs) == ((8, 9), 1e-3, True)
    assert (agent.normalize_advantage, agent.target_kl) == (False, 0.01)  # type: ignore[attr-defined]
    assert (flags.run_dir, flags.resume) == (Path("x"), True)


@pytest.mark.parametrize("agent", agent_names())
def test_every_setting_has_a_flag_and_no_other(cli: Cli, agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags are made from the sections: what Python can say, the command line can."""
    monkeypatch.setenv("COLUMNS", "100")
    out = cli("train", agent, "Nowhere-v0", "--help").out
    found = {
        flag.removeprefix("--").replace("-", "_") for flag in re.findall(r"^\W*(--[a-z][\w.-]*)", out, re.MULTILINE)
    }
    sections = {**SECTIONS, "agent": find_agent(agent).config}
    wanted = {
        f"{name}.{f.name}" if name in ("agent", "eval", "checkpoint") else f.name
        for name, kind in sections.items()
        for f in used_fields(kind)
    }
    wanted = (wanted - {"id", "kwargs"}) | {"env_kwargs"}
    switches = {name.replace(".no_", ".") for name in found}  # a switch that is on by default shows how to put it off
    of_the_command = {"help", "run_dir", "resume", "restartable", "envs_per_worker", "async", "allow", "callback"}
    assert switches - of_the_command == wanted


def test_whole_numbers_may_be_written_with_an_exponent(cli: Cli) -> None:
    # N15
    config = configured("ppo", "CartPole-v1", "--max-steps 1e5 --patience 2e0 --agent.hidden 1e2 8 --executor inline")
    assert (config.train.max_steps, config.train.patience, config.agent.hidden) == (100_000, 2, (100, 8))
    assert "--max-steps '1.5e0' is not a whole number" in cli("train", *PAIR, "--max-steps", "1.5e0").sentence


PAIR = ("ppo", "CartPole-v1")


def test_a_module_beside_the_command_is_found(tmp_path: Path) -> None:
    # N3: not without PYTHONPATH=., and not in worker processes.
    (tmp_path / "near_walk.py").write_text(OWN_ENV)
    script = tmp_path / "bin" / "elegantrl"  # as pip installs it: its own folder is on the path, this one is not
    script.parent.mkdir()
    script.write_text(
        "import sys\nfrom elegantrl.cli.main import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
    )
    command = [sys.executable, str(script), "train", "ppo", "near_walk:Walk", "--run-dir", "run"]
    env = {**os.environ, "PYTHONPATH": str(Path(elegantrl.__file__).parents[1])}
    words = [*map(str, SMALL), "--num-workers", "2", "--num-envs", "2"]
    done = subprocess.run([*command, *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_does_not_wait_for_torch() -> None:
    # N15
    code = "import sys; from elegantrl.cli.main import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    for argv in (["--help"], ["train", "--help"], ["--version"]):
        subprocess.run([sys.executable, "-c", code, *argv], check=True, stdout=subprocess.DEVNULL)


def test_a_refused_run_prints_no_header(cli: Cli, tmp_path: Path) -> None:
    # N15
    outcome = cli("train", "dqn", "Pendulum-v1", "--run-dir", tmp_path / "run")
    assert (outcome.code, outcome.out) == (2, "") and outcome.sentence.startswith("AgentDQN needs discrete or")


# ---- eval and plot


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("cli") / "run"
    assert main([str(w) for w in ("train", "a2c", "TensorCartPole", "--run-dir", run, *SMALL)]) == 0
    return run


def test_eval_prints_json(cli: Cli, finished: Path) -> None:
    first = cli("eval", finished, "--json", "--episodes", 5)
    assert (first.code, first.err) == (0, "")
    result = json.loads(first.out)
    assert result["agent"] == "a2c" and result["env"] == "TensorCartPole" and result["episodes"] == 5
    assert len(result["returns"]) == 5
    assert result["mean_return"] == pytest.approx(np.mean(result["returns"]))
    assert result["std_return"] == pytest.approx(np.std(result["returns"]))
    assert cli("eval", finished, "--json", "--episodes", 5).out == first.out
    assert json.loads(cli("eval", finished, "--json", "--episodes", 5, "--seed", 1).out) != result


def test_eval_prints_a_table(cli: Cli, finished: Path) -> None:
    outcome = cli("eval", finished, "--episodes", 5)
    assert outcome.code == 0
    for word in ("a2c on TensorCartPole", "episodes", "mean", "95 % interval", "std", "min", "max"):
        assert word in outcome.out


def test_eval_changes_nothing(cli: Cli, finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert cli("eval", finished, "--episodes", 1).code == 0
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


def test_plot_writes_a_picture(cli: Cli, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = cli("plot", finished, "--out", tmp_path / "x.png")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"{tmp_path / 'x.png'}\n", "")
    assert matplotlib.image.imread(tmp_path / "x.png").std() > 0.01
    monkeypatch.chdir(tmp_path)
    assert cli("plot", finished, finished).out == "learning_curves.png\n"
    assert Path("learning_curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


# ---- lists and help


def test_lists(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    envs = cli("envs")
    assert envs.code == 0
    assert all(name in envs.out for name, _ in env_names())
    assert "module:attribute" in envs.out
    agents = cli("agents")
    assert agents.code == 0
    for name in agent_names():
        assert name in agents.out and all(env in agents.out for env in tuned_environments(name))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--help",), ["train AGENT ENV", "eval RUN", "plot RUN", "envs", "agents", "Exit codes: 0 done, 2 bad input"]),
        (("-h",), ["train AGENT ENV"]),
        (("train", "--help"), ["train AGENT ENV [OPTIONS]", "--config FILE", "module:Class of your own"]),
        (("train", "ppo", "--help"), ["train AGENT ENV [OPTIONS]"]),
        (("train", "--config", "--help"), ["--config FILE"]),
        (("train", "ppo", "CartPole-v1", "--help"), ["--agent.clip FLOAT", "(default: 0.98)", "--checkpoint.keep INT"]),
        (("train", "sac", "Pendulum-v1", "-h"), ["--agent.learning-starts INT", "--run-dir FOLDER", "NAME=VALUE"]),
        (("eval", "--help"), ["RUN", "--episodes INT", "--json"]),
        (("plot", "--help"), ["RUN...", "--out PATH"]),
        (("envs", "--help"), ["List the environments"]),
        (("agents", "--help"), ["List the agents"]),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
def test_help(cli: Cli, argv: tuple[str, ...], says: list[str]) -> None:
    outcome = cli(*argv)
    assert (outcome.code, outcome.err) == (0, "")
    for text in says:
        assert text in outcome.out


@pytest.mark.parametrize("agent", RUNS)
def test_every_setting_is_explained(cli: Cli, agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flag in the help text is followed by a sentence and its default."""
    monkeypatch.setenv("COLUMNS", "100")  # wider, and the options stand in two columns
    out = cli("train", agent, RUNS[agent][0], "--help").out
    entries = re.findall(r"^\W*(--[a-z][\w.-]*)(.*?)(?=^\W*--[a-z]|\Z)", out, flags=re.MULTILINE | re.DOTALL)
    assert len(entries) >= 20
    for flag, text in entries:
        sentence, found, _ = " ".join(text.split()).partition("(default: ")
        assert found and re.search(r"\w{3,} .*\w{3,}", sentence), flag


def test_no_command(cli: Cli) -> None:
    outcome = cli()
    assert outcome.code == 2 and "usage: elegantrl COMMAND" in outcome.out
    outcome = cli("train")
    assert outcome.code == 2 and "usage: elegantrl train AGENT ENV" in outcome.out


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"elegantrl {elegantrl.__version__}\n"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", ["40", "200"])
def test_a_mistake_is_one_plain_line_on_a_terminal_too(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["train", "ppo", "CartPole-v1", "--num-envs", "abc"]) == 2
    assert out.getvalue() == ""
    assert err.getvalue() == (
        "elegantrl: --num-envs 'abc' is not a whole number; see elegantrl train ppo CartPole-v1 --help\n"
    )


def test_ctrl_c(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("elegantrl.runtime.train.run_training", interrupt)
    outcome = cli("train", "ppo", "CartPole-v1")
    assert outcome.code == 130
    assert outcome.err == "elegantrl: interrupted at once; a run folder keeps its last commit\n"


# ---- what a person sees of a run


def progress(step: int = 2500, returns: tuple[float, ...] = (10.0, 20.0), best: float = 12.5) -> Progress:
    return Progress(env_steps=step, last_scored=step, recent_returns=deque(returns), best_mean=best)


def console(width: int, terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width, force_terminal=terminal, legacy_windows=False, color_system=None), out


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_bar_fits_and_says_what_matters(width: int) -> None:
    terminal, out = console(width, True)
    with RunDisplay(10_000, terminal) as display:
        assert out.getvalue() == ""  # nothing before there is something to show
        display.progress(progress(returns=(), best=-np.inf), 1234.0)
        display.bar.refresh()
        display.progress(progress(), 123_456.0)
        display.bar.refresh()
        lines = [line for line in plain(out.getvalue()).replace("\r", "\n").splitlines() if "%" in line]
    assert any(re.search(r"25% +1,234 steps/s  return +-  best +- ", line) for line in lines)
    assert re.search(r"25% +123,456 steps/s  return +15\.0  best +12\.5 left", lines[-1])
    assert all(len(line) <= width for line in lines)


def test_a_log_gets_a_line_now_and_then() -> None:
    log, out = console(100, False)
    with RunDisplay(10_000, log) as display:
        display.progress(progress(), 1000.0)
        assert out.getvalue() == ""
        display.last_line -= PLAIN_SECONDS
        display.progress(progress(), 1000.0)
        display.progress(progress(), 1000.0)
    assert out.getvalue() == "step      2,500 of 10,000    1,000 steps/s  return     15.0  best     12.5\n"


def test_evaluations_and_messages_are_lines() -> None:
    log, out = console(40, False)  # narrower than the lines, which are not broken all the same
    with RunDisplay(10_000, log) as display:
        display.evaluation(progress(), Score((1.0, 3.0)), True)
        display.evaluation(progress(), Score((1.0,)), False)
        display.message("[red]a message[/red] that is longer than the forty columns of this terminal")
    assert out.getvalue().splitlines() == [
        "step      2,500  evaluation        2.0 +/- 12.7    (std 1.0, 2 episodes)  best",
        "step      2,500  evaluation        1.0 +/- 0.0     (std 0.0, 1 episode)",
        "[red]a message[/red] that is longer than the forty columns of this terminal",
    ]


# ---- real processes

COMMAND = Path(sys.executable).with_name("elegantrl")


def start(*argv: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "elegantrl.cli.main", *map(str, argv)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.skipif(not COMMAND.exists(), reason="the package is not installed")
def test_the_console_command() -> None:
    done = subprocess.run([COMMAND, "train", "ppo", "CartPol-v1"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("elegantrl: unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'")


def test_a_run_survives_the_loss_of_its_reader(tmp_path: Path) -> None:
    """``elegantrl train ... | head -1`` trains to the end."""
    with start("train", "ppo", "CartPole-v1", "--run-dir", tmp_path / "run", *SMALL) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("ppo on CartPole-v1")
        process.stdout.close()
        assert (process.wait(240), process.stderr.read()) == (0, "")
    assert json.loads((tmp_path / "run/summary.json").read_text())["stop_reason"] == "max_steps"


def without_output(stream: str, *argv: Any) -> subprocess.CompletedProcess[str]:
    """A command whose shell redirects its standard output: ``>&-`` closes it."""
    command = ["sh", "-c", f'exec "$@" {stream}', "sh", sys.executable, "-m", "elegantrl", *map(str, argv)]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=120)


@pytest.mark.parametrize("stream", [">&-", ">/dev/full"])
def test_a_run_needs_no_standard_output(tmp_path: Path, stream: str) -> None:
    """R16: services and cron jobs start programs without one."""
    done = without_output(stream, "train", "ppo", "CartPole-v1", "--run-dir", tmp_path / "run", *SMALL)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "run/summary.json").read_text())["stop_reason"] == "max_steps"


@pytest.mark.parametrize("argv", [("--help",), ("envs",), ("train", "ppo", "CartPole-v1", "--help")])
def test_commands_need_no_standard_output(argv: tuple[str, ...]) -> None:
    done = without_output(">&-", *argv)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_result_that_cannot_be_written_is_an_error() -> None:
    done = without_output(">/dev/full", "--version")
    assert done.returncode == 5
    assert done.stderr == "elegantrl: standard output cannot be written: No space left on device; free some space\n"


@pytest.mark.parametrize("command", ["--help", "envs"])
def test_a_listing_survives_the_loss_of_its_reader(command: str) -> None:
    with start(command) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert (process.wait(240), process.stderr.read()) == (0, "")


def test_several_runs_are_scored_as_one_ensemble(cli: Cli, quick: None, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for seed, folder in enumerate(folders):
        assert cli("train", "ppo", "Pendulum-v1", "--run-dir", folder, "--seed", seed, *SMALL).code == 0
    scored = json.loads(cli("eval", *folders, "--episodes", 3, "--json").out)
    assert scored["mean_return"] == pytest.approx(TrainedPolicy.ensemble(folders).evaluate(3).mean)
    assert scored["runs"] == [str(folder) for folder in folders]
    assert "ensemble of 2 runs on Pendulum-v1" in cli("eval", *folders, "--episodes", 2).out
    first = json.loads(cli("eval", *folders, "--weights", 1, 0, "--episodes", 3, "--json").out)
    assert first["mean_return"] == pytest.approx(TrainedPolicy.load(folders[0]).evaluate(3).mean)
    outcome = cli("eval", *folders, "--weights", 1)
    assert outcome.code == 2 and "1 weights for 2 models" in outcome.err

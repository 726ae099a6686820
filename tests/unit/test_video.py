from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import elegantrl
from elegantrl.envs import make_env
from elegantrl.envs.tensor.drawing import PAPER, Canvas
from elegantrl.errors import ConfigError
from elegantrl.report import video as video_module
from elegantrl.report.video import check_path, record, without_display
from elegantrl.runtime.run import RunResult

Run = Callable[..., RunResult]
Cli = Callable[..., Any]
SHORT: dict[str, Any] = {"hidden": [8], "horizon": 8, "max_steps": 16, "eval": {"episodes": 1}}
DRAWN = (
    "TensorCartPole",
    "TensorPendulum",
    "Chasing",
    "TensorSpread",
    "TensorTag",
    "TensorSpeakerListener",
    "TensorSkirmish",
)


def test_episodes_are_recorded_in_one_file(run_quietly: Run, cli: Cli, tmp_path: Path) -> None:
    # N16: there was no video of what a policy does.
    run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "run", **SHORT)
    file = tmp_path / "videos" / "cart.gif"
    words = ("record", tmp_path / "run", "--episodes", 2, "--seed", 4, "--out", file)
    result = json.loads(cli(*words, "--json").out.splitlines()[-1])
    assert result["file"] == str(file) and len(result["returns"]) == 2
    assert result["frames"] == sum(result["returns"]) + 2  # the first picture, and one for each step worth 1
    with Image.open(file) as image:
        assert image.size == (600, 400) and 2 <= image.n_frames <= result["frames"]
        assert image.info["duration"] == 40  # every second of 50 pictures per second
    assert list(file.parent.iterdir()) == [file]
    assert f"{file}: {result['frames']} frames drawn, returns " in cli(*words).out
    alone = record(tmp_path / "run", tmp_path / "b.gif", seed=5)  # the second of these episodes
    assert alone.returns == (result["returns"][1],)


def test_an_episode_is_recorded_as_mp4(run_quietly: Run, tmp_path: Path) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    run = run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "run", **SHORT)
    video = elegantrl.record(run.load_policy(), tmp_path / "cart.mp4", seed=3)
    about = subprocess.run([ffmpeg.get_ffmpeg_exe(), "-i", video.path], capture_output=True, text=True).stderr
    assert re.search(r"Video: h264.*600x400.* 50 fps", about), about
    frames, _ = ffmpeg.count_frames_and_secs(str(video.path))
    assert frames == video.num_frames + 25  # the last picture stays for half a second


@pytest.mark.parametrize("driver", [None, "x11"])
def test_the_screen_is_not_used_and_not_changed(monkeypatch: pytest.MonkeyPatch, driver: str | None) -> None:
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    if driver is not None:
        monkeypatch.setenv("SDL_VIDEODRIVER", driver)
    with without_display():
        assert os.environ["SDL_VIDEODRIVER"] == (driver or "dummy")
    assert os.environ.get("SDL_VIDEODRIVER") == driver


def test_an_odd_size_is_made_even() -> None:
    picture = np.arange(5 * 3 * 3, dtype=np.uint8).reshape(5, 3, 3)
    even = video_module.even(picture)
    assert even.shape == (6, 4, 3) and (even[:5, :3] == picture).all() and (even[5] == even[4]).all()


@pytest.mark.parametrize("has_ffmpeg", [True, False])
def test_a_video_lies_in_the_run_folder_unless_said_otherwise(
    run_quietly: Run, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ffmpeg: bool
) -> None:
    if has_ffmpeg:
        pytest.importorskip("imageio_ffmpeg")
    else:
        monkeypatch.setattr(video_module, "find_spec", lambda name: None)
    run_quietly("ppo", "TensorPendulum", run_dir=tmp_path / "run", env_kwargs={"max_episode_steps": 9}, **SHORT)
    assert ": 9 frames drawn, return -" in cli("record", tmp_path / "run").out.splitlines()[-1]
    assert (tmp_path / "run" / ("demo.mp4" if has_ffmpeg else "demo.gif")).stat().st_size > 1000


@pytest.mark.parametrize("name", ["a.avi", "a", "a.mp4.txt"])
def test_another_format_is_refused(cli: Cli, tmp_path: Path, name: str) -> None:
    outcome = cli("record", tmp_path, "--out", name)
    assert outcome.code == 2 and f"--out {name} must end in one of .gif, .mp4" in outcome.sentence


def test_without_the_extra_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs ffmpeg: pip install 'elegantrl\[video\]', or write a .gif"):
        check_path(Path("a.mp4"))
    check_path(Path("a.gif"))


def test_no_episodes_are_refused(cli: Cli, tmp_path: Path) -> None:
    assert "--episodes 0 is out of range" in cli("record", tmp_path, "--episodes", 0).sentence


def test_an_environment_without_pictures_is_named(run_quietly: Run, cli: Cli, tmp_path: Path) -> None:
    run_quietly("ppo", "Doors", run_dir=tmp_path / "run", **SHORT)
    outcome = cli("record", tmp_path / "run", "--out", tmp_path / "a.gif")
    assert outcome.code == 2 and "Doors draws no pictures" in outcome.sentence
    assert not (tmp_path / "a.gif").exists()


def test_an_environment_that_fails_is_one_sentence_and_leaves_no_file(
    run_quietly: Run, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "run", **SHORT)
    monkeypatch.setattr("gymnasium.envs.classic_control.cartpole.CartPoleEnv.render", lambda self: 1 / 0)
    outcome = cli("record", tmp_path / "run", "--out", tmp_path / "out" / "a.gif")
    assert outcome.code == 3 and "the recording failed: ZeroDivisionError" in outcome.sentence
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(("agent", "env"), [("mappo", "TensorSpread"), ("mappo", "TensorSkirmish")])
def test_a_team_of_a_tensor_environment_is_recorded(
    run_quietly: Run, cli: Cli, tmp_path: Path, agent: str, env: str
) -> None:
    run_quietly(agent, env, run_dir=tmp_path / "run", env_kwargs={"max_episode_steps": 12}, **SHORT)
    file = tmp_path / "team.gif"
    video = record(tmp_path / "run", file)
    result = json.loads(cli("eval", tmp_path / "run", "--episodes", 1, "--json").out.splitlines()[-1])
    assert video.num_frames >= 2 and len(result["agent_means"]) == 3
    assert video.returns == pytest.approx([result["mean_return"]], rel=1e-4)  # the same seed and policy
    assert ("win_rate" in result) == (env == "TensorSkirmish")
    with Image.open(file) as image:
        assert image.size[0] >= 64


def test_a_team_with_render_is_recorded(run_quietly: Run, tmp_path: Path) -> None:
    pytest.importorskip("mpe2")
    run = run_quietly("mappo", "mpe2:simple_spread_v3", run_dir=tmp_path / "run", **SHORT)
    video = record(run.load_policy(), tmp_path / "team.gif")
    assert video.num_frames == 26
    with Image.open(tmp_path / "team.gif") as image:
        assert image.n_frames > 1


# ---- pictures of tensor environments


@pytest.mark.parametrize("name", DRAWN)
def test_tensor_environments_draw_what_happens(name: str) -> None:
    env: Any = make_env(name, 2)
    env.reset(1)
    generator = torch.Generator().manual_seed(0)
    pictures = [env.draw(1)]
    for _ in range(6):
        env.step(env.spec.action.random((2, *env.spec.team), generator))
        pictures.append(env.draw(1))
    height, width, _ = pictures[0].shape
    assert pictures[0].dtype == np.uint8 and height % 2 == width % 2 == 0
    assert sum((a != b).any() for a, b in itertools.pairwise(pictures)) >= 3  # nearly every step is seen
    assert (env.draw(0) != env.draw(1)).any() and len(np.unique(pictures[0].reshape(-1, 3), axis=0)) > 3


def test_a_world_of_another_dimension_is_drawn() -> None:
    for dim in (1, 3):
        env: Any = make_env("Chasing", 1, dim=dim)
        env.reset(0)
        assert env.draw().shape == (320, 320, 3)


def test_shapes_are_where_they_should_be() -> None:
    canvas = Canvas(2.0, 1.0, width=40)  # a pixel is 0.1 wide
    canvas.rod((-1.0, 0.5), (1.0, 0.5), 0.4, (1.0, 0.0, 0.0))
    pixels = canvas.pixels()
    assert pixels.shape == (20, 40, 3)
    paper = [round(255 * value) for value in PAPER]
    assert pixels[5, 20].tolist() == [255, 0, 0]  # y = 0.45, inside
    assert pixels[15, 20].tolist() == paper and pixels[5, 5].tolist() == paper  # below, and left of its end
    assert (pixels[:, 20, 0] == 255).sum() == 4 and (pixels[:, 20] == [255, 0, 0]).all(1).sum() == 4  # 0.4 high

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from elegantrl.errors import ConfigError
from elegantrl.report.video import check_video_path, film_episode
from elegantrl.runtime.run import RunResult

Run = Callable[..., RunResult]
Cli = Callable[..., Any]
SHORT: dict[str, Any] = {"hidden": [8], "horizon": 8, "max_steps": 16, "eval": {"episodes": 1}}


def test_an_episode_is_filmed(run_quietly: Run, cli: Cli, tmp_path: Path) -> None:
    # N16: there was no video of what a policy does.
    pytest.importorskip("imageio")
    run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "run", **SHORT)
    file = tmp_path / "videos" / "cart.gif"
    result = json.loads(cli("eval", tmp_path / "run", "--episodes", 1, "--video", file, "--json").out.splitlines()[-1])
    assert result["video"]["file"] == str(file) and result["video"]["frames"] == result["video"]["return"] + 1
    with Image.open(file) as image:
        assert image.size == (600, 400) and 2 <= image.n_frames <= result["video"]["frames"]
    assert list(file.parent.iterdir()) == [file]
    assert "frames, return" in cli("eval", tmp_path / "run", "--episodes", 1, "--video", file).out


def test_an_episode_is_filmed_as_mp4(run_quietly: Run, tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    run = run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "run", **SHORT)
    video = film_episode(run.load_policy(), tmp_path / "cart.mp4", seed=3)
    assert (tmp_path / "cart.mp4").stat().st_size > 1000 and video.num_frames > 5


@pytest.mark.parametrize("name", ["a.avi", "a", "a.mp4.txt"])
def test_another_format_is_refused(cli: Cli, tmp_path: Path, name: str) -> None:
    outcome = cli("eval", tmp_path, "--video", name)
    assert outcome.code == 2 and f"--video {name} must end in one of .gif, .mp4" in outcome.sentence


def test_without_the_extra_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio", None)
    with pytest.raises(ConfigError, match=r"needs imageio: pip install 'elegantrl\[video\]'"):
        check_video_path(Path("a.gif"))


def test_an_environment_without_pictures_is_named(run_quietly: Run, cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("imageio")
    run_quietly("ppo", "TensorPendulum", run_dir=tmp_path / "run", **SHORT)
    outcome = cli("eval", tmp_path / "run", "--episodes", 1, "--video", tmp_path / "a.gif")
    assert (outcome.code == 2 and "render_mode" in outcome.sentence) or "draws no pictures" in outcome.sentence
    assert not (tmp_path / "a.gif").exists()


@pytest.mark.parametrize(("agent", "env"), [("mappo", "TensorSpread"), ("mappo", "TensorSkirmish")])
def test_a_team_of_a_tensor_environment_is_filmed(
    run_quietly: Run, cli: Cli, tmp_path: Path, agent: str, env: str
) -> None:
    pytest.importorskip("imageio")
    run_quietly(agent, env, run_dir=tmp_path / "run", **SHORT)
    file = tmp_path / "team.gif"
    result = json.loads(cli("eval", tmp_path / "run", "--episodes", 1, "--video", file, "--json").out.splitlines()[-1])
    assert result["video"]["frames"] >= 2 and len(result["agent_means"]) == 3
    assert result["video"]["return"] == pytest.approx(result["mean_return"], rel=1e-4)  # the same seed and policy
    assert ("win_rate" in result) == (env == "TensorSkirmish")
    with Image.open(file) as image:
        assert image.size[0] >= 64


def test_a_team_with_render_is_filmed(run_quietly: Run, tmp_path: Path) -> None:
    pytest.importorskip("imageio")
    pytest.importorskip("mpe2")
    run = run_quietly("mappo", "mpe2:simple_spread_v3", run_dir=tmp_path / "run", **SHORT)
    video = film_episode(run.load_policy(), tmp_path / "team.gif")
    assert video.num_frames == 26
    with Image.open(tmp_path / "team.gif") as image:
        assert image.n_frames > 1

"""``check_env`` finds each breach of the contract and names the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from elegantrl.envs import CartPoleVecEnv, TensorEnv, check_env
from elegantrl.errors import SpecError
from elegantrl.types import ActionSpec, Leaf, State, Step


class Edited(CartPoleVecEnv):
    """A sound environment whose steps pass through ``edit``."""

    def __init__(self, edit: Callable[[Step], Step]):
        super().__init__(3)
        self.edit = edit

    def step(self, action: Tensor) -> Step:
        return self.edit(super().step(action))


def rewritten() -> Callable[[Step], Step]:
    buffer = torch.zeros(3)
    return lambda step: step._replace(reward=buffer.add_(1))


def noisy() -> Callable[[Step], Step]:
    return lambda step: step._replace(reward=torch.rand(3))


def test_a_sound_environment_passes() -> None:
    check_env(Edited(lambda step: step))


@pytest.mark.parametrize(
    ("edit", "parts"),
    [
        (lambda s: s._replace(reward=s.reward.double()), ["reward", "torch.float32", "torch.float64"]),
        (lambda s: s._replace(reward=s.reward.unsqueeze(1)), ["reward", "of shape (3,)", "(3, 1)"]),
        (lambda s: s._replace(reward=s.reward / 0), ["reward", "finite", "NaN or infinity"]),
        (lambda s: s._replace(reward=s.reward.tolist()), ["reward", "a tensor", "list"]),
        (lambda s: s._replace(obs=s.obs[:, :2]), ["obs", "of shape (3, 4)", "(3, 2)"]),
        (lambda s: s._replace(terminated=s.terminated.float()), ["terminated", "torch.bool"]),
        (lambda s: s._replace(truncated=s.terminated), ["truncated", "false where terminated", "both true"]),
        (lambda s: s._replace(next_obs=s.obs), ["next_obs", "the last observation of the old episode"]),
        (lambda s: s._replace(next_obs=s.next_obs + 1), ["next_obs", "equal to obs where no episode ended"]),
        (lambda s: s._replace(reward=s.reward.to("meta")), ["reward", "on cpu", "meta"]),
        (rewritten(), ["reward", "never written to again"]),
        (noisy(), ["reward", "equal under the same seed"]),
    ],
)
def test_a_broken_step_is_named(edit: Callable[[Step], Step], parts: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        check_env(Edited(edit))
    message = str(caught.value)
    assert "\n" not in message and "'TensorCartPole'" in message
    assert all(part in message for part in parts), message


class Unseeded(CartPoleVecEnv):
    def reset(self, seed: int) -> Tensor:
        return super().reset(torch.seed())


class Forgetful(CartPoleVecEnv):
    """Loads everything but the generator, which only shows in the episodes to come."""

    def load_state_dict(self, state: State) -> Tensor:
        return super().load_state_dict({**state, "generator": self.generator.get_state()})


class Unstorable(CartPoleVecEnv):
    def state_dict(self) -> State:
        return {**super().state_dict(), "generator_object": self.generator}


@pytest.mark.parametrize(
    ("broken", "parts"),
    [
        (Unseeded, ["reset observation", "equal under the same seed"]),
        (Forgetful, ["equal after load_state_dict"]),
        (Unstorable, ["state_dict", "tensors and JSON values"]),
    ],
)
def test_a_broken_seed_or_state_is_named(broken: Any, parts: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        check_env(broken(3))
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_stacks_that_skip_frames_are_found() -> None:
    class Skips(TensorEnv):
        obs = Leaf((3, 2, 2), "uint8", stack=3)
        action = ActionSpec(choices=(2,))
        max_episode_steps = 9

        def initial(self, num_rows: int) -> Tensor:
            return torch.zeros(num_rows, 1)

        def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return state + 2, torch.zeros(len(state)), torch.zeros(len(state), dtype=torch.bool)

        def observe(self, state: Tensor) -> Tensor:
            frames = (state + torch.tensor([10.0, 11.0, 12.0])).to(torch.uint8)
            return frames[..., None, None].expand(-1, 3, 2, 2)

    with pytest.raises(SpecError, match="next_obs is expected to be the stack before the step and one frame more"):
        check_env(Skips(2), steps=20)

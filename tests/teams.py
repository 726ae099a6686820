"""Small teams. An agent that acts though it may not is an error."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from elegantrl.envs.tensor.base import TensorEnv
from elegantrl.types import ActionSpec, Leaf, Obs

OPTIONS = 3


class Signs(TensorEnv):
    """Three agents; each sees a sign of its own and gets 1 for the option on it. The state shows all signs."""

    num_agents, max_episode_steps, has_state = 3, 6, True
    action = ActionSpec(choices=(OPTIONS,))

    def __init__(self, num_envs: int = 1, device: torch.device | str = "cpu", max_episode_steps: int | None = None):
        state = Leaf((3 * OPTIONS,)) if self.has_state else None
        self.obs = Obs(Leaf((3, OPTIONS + 1)), state=state)  # type: ignore[arg-type]
        super().__init__(num_envs, device, max_episode_steps)

    def initial(self, num_rows: int) -> Tensor:
        signs = torch.randint(OPTIONS, (num_rows, 3), generator=self.generator, device=self.device)
        return torch.cat([signs, torch.zeros(num_rows, 1, dtype=torch.int64, device=self.device)], 1)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The state is (signs, time)."""
        signs, time = state[:, :3], state[:, 3:]
        reward = (action == signs).float()
        return torch.cat([(signs + 1) % OPTIONS, time + 1], 1), reward, torch.zeros(len(state), dtype=torch.bool)

    def signs(self, state: Tensor) -> Tensor:
        """What each agent sees [N, G, O]."""
        time = (state[:, 3:] / 6).float().expand(-1, 3).unsqueeze(-1)
        return torch.cat([one_hot(state[:, :3], OPTIONS).float(), time], -1)

    def observe(self, state: Tensor) -> Obs:
        seen = self.signs(state)
        return Obs(seen, state=seen[..., :OPTIONS].flatten(1) if self.has_state else None)


class PlainSigns(Signs):
    """Without a global state."""

    has_state = False


class LeavingSigns(Signs):
    """Agent g ends after g + 2 steps, the team with the last; some options are blocked."""

    def __init__(self, num_envs: int = 1, device: torch.device | str = "cpu", max_episode_steps: int | None = None):
        self.has_state = True
        super().__init__(num_envs, device, max_episode_steps)
        mask, active = Leaf((3, OPTIONS), "bool"), Leaf((3,), "bool")
        object.__setattr__(self.spec, "obs", self.spec.obs._replace(mask=mask, active=active))

    def active(self, state: Tensor) -> Tensor:
        return state[:, 3:] < torch.arange(2, 5)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        active = self.active(state)
        allowed = self.allowed(state).gather(-1, action.unsqueeze(-1)).squeeze(-1)
        assert (allowed | ~active).all(), "a forbidden action"
        after, reward, _ = super().dynamics(state, action)
        return after, reward * active, ~self.active(after).any(-1)

    def allowed(self, state: Tensor) -> Tensor:
        """The sign's option and one other [N, G, A]; nothing for an agent that has ended."""
        option, sign = torch.arange(OPTIONS), state[:, :3].unsqueeze(-1)
        return ((option == sign) | (option == (sign + 1) % OPTIONS)) & self.active(state).unsqueeze(-1)

    def observe(self, state: Tensor) -> Obs:
        shown, active = super().observe(state), self.active(state)
        return shown._replace(seen=shown.seen * active.unsqueeze(-1), mask=self.allowed(state), active=active)


class Aims(Signs):
    """Two numbers for agent 0 and one for the others: minus the squared distance from the agent's sign."""

    action = ActionSpec(dim=2, sizes=(2, 1, 1))

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert not action[:, 1:, 1].any(), "a number that the agent does not have"
        aim = (state[:, :3] - 1).float() * 0.5
        reward = -(action[..., 0] - aim).square()
        after, _, ended = super().dynamics(state, torch.zeros_like(state[:, :3]))
        return after, reward, ended

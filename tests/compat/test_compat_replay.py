"""The documented replay buffer."""

import pytest
import torch

from elegantrl import (
    ReplayBuffer,
)
from elegantrl.errors import ConfigError


def test_replay_buffer_pairs_states_with_their_successors():
    buffer = ReplayBuffer(max_size=100, state_dim=1, action_dim=2, num_seqs=2)
    for start in (0, 10):
        states = torch.arange(start, start + 10.0).reshape(10, 1, 1) + torch.tensor([0.0, 1000.0]).reshape(1, 2, 1)
        ones = torch.ones(10, 2)
        undones = ones.clone()
        undones[4] = 0
        buffer.update((states, torch.zeros(10, 2, 2), states.squeeze(-1), undones, ones))
    assert buffer.cur_size == 19
    states, actions, rewards, undones, unmasks, next_states = buffer.sample(256)
    assert torch.equal(next_states, states + 1) and torch.equal(rewards, states.squeeze(-1))
    assert actions.shape == (256, 2) and bool(unmasks.all())
    assert torch.equal(undones == 0, states.squeeze(-1) % 10 == 4)


@pytest.mark.parametrize("num_seqs", [1, 3])
def test_a_full_replay_buffer_never_pairs_the_newest_with_the_oldest(num_seqs):
    """Guards against: B5, a successor from across the write head."""
    buffer = ReplayBuffer(max_size=5, state_dim=1, action_dim=2, num_seqs=num_seqs)
    for time in range(14):
        number = time + 1000.0 * torch.arange(num_seqs)
        one = torch.ones(1, num_seqs)
        buffer.update((number.view(1, -1, 1), torch.zeros(1, num_seqs, 2), number.view(1, -1), one, one))
        if time:
            states, _, _, _, _, next_states = buffer.sample(100)
            assert torch.equal(next_states, states + 1)
            assert (states % 1000).min() >= max(0, time - 5) and (states % 1000).max() == time - 1


def test_replay_buffer_of_many_choices():
    """Guards against: B6, choices beyond 255 that overflow."""
    buffer = ReplayBuffer(max_size=300, state_dim=1, action_dim=300, if_discrete=True)
    number, one = torch.arange(300.0).view(-1, 1), torch.ones(300, 1)
    buffer.update((number.unsqueeze(-1), number.long().unsqueeze(-1), number, one, one))
    states, actions, *_ = buffer.sample(2000)
    assert torch.equal(actions, states[:, 0].long()) and actions.max() > 255


def test_replay_buffer_of_choices_and_its_limits():
    buffer = ReplayBuffer(4, 3, 2, gpu_id=-1, if_discrete=True)
    with pytest.raises(ConfigError, match="empty"):
        buffer.sample(1)
    row = torch.ones(6, 1)
    buffer.update((torch.zeros(6, 1, 3), torch.ones(6, 1, 1, dtype=torch.int32), row, row, row))
    assert buffer.cur_size == 4
    assert buffer.sample(8)[1].dtype == torch.int64
    with pytest.raises(ConfigError, match="no priorities; make it with if_use_per=True"):
        buffer.sample_for_per(1)
    with pytest.raises(ConfigError, match="num_envs=1 and state_dim=3, but states of shape"):
        buffer.update((torch.zeros(6, 2, 3), torch.ones(6, 2), *[torch.ones(6, 2)] * 3))

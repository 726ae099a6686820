"""The wide contract: a picture, a vector, a mask, a global state and a team go from the environment into a commit.

A team of two in two lanes sees a dict of a picture and a vector, may not take every action, makes two choices at once
and has a reward per agent. The policy carries a count of its steps. Everything goes through a group actor, pipes
between processes, a learner's memory and a commit, keeps its shape and type, and continues after a resume.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Generator, Tensor, nn

from elegantrl import tree
from elegantrl.agents.base import Agent, AgentConfig
from elegantrl.agents.off_policy import ReplayConfig
from elegantrl.agents.ppo import PPOConfig
from elegantrl.data.memory import Replay, build_memory
from elegantrl.envs import VecEnv, check_env
from elegantrl.envs.tensor.base import TensorEnv
from elegantrl.errors import SpecError
from elegantrl.execute.inline import InlineExecutor
from elegantrl.execute.packing import TREE, pack
from elegantrl.execute.process import ProcessExecutor
from elegantrl.nets.networks import NetSpec
from elegantrl.nets.policies import Acted, Draw, Policy, PolicySpec
from elegantrl.registry import find_agent
from elegantrl.roles.evaluator import Evaluator
from elegantrl.roles.group import GroupActor
from elegantrl.roles.learner import Learner
from elegantrl.runtime.build import PRELOAD
from elegantrl.store.commits import Store
from elegantrl.tree import Tree
from elegantrl.types import ActionSpec, EnvSpec, Leaf, Metrics, Obs, State, Step, Update, Weights

CPU = torch.device("cpu")
N, G, LIMIT = 2, 2, 5
OBS = Obs(
    seen={"picture": Leaf((G, 4, 4, 1), "uint8"), "vector": Leaf((G, 3))},
    mask=Leaf((G, 5), "bool"),
    state=Leaf((6,)),
    active=Leaf((G,), "bool"),
)
SPEC = EnvSpec("Team", OBS, ActionSpec(choices=(3, 2)), N, LIMIT, num_agents=G)


class TeamEnv(VecEnv):
    """Counts; what it shows follows from the count and the seed."""

    def __init__(self, num_envs: int = N) -> None:
        self.device, self.seed, self.time = CPU, 0, 0
        self.spec = EnvSpec("Team", OBS, SPEC.action, num_envs, LIMIT, num_agents=G)

    def observe(self, time: int) -> Obs:
        g = torch.Generator().manual_seed(self.seed * 1000 + time)
        lanes = self.spec.num_envs
        picture = torch.randint(256, (lanes, G, 4, 4, 1), generator=g, dtype=torch.uint8)
        mask = torch.rand(lanes, G, 5, generator=g) < 0.5
        mask[..., [0, 3]] = True
        seen = {"picture": picture, "vector": torch.randn(lanes, G, 3, generator=g)}
        return Obs(seen, mask, torch.randn(lanes, 6, generator=g), torch.ones(lanes, G, dtype=torch.bool))

    def reset(self, seed: int) -> Obs:
        self.seed, self.time = seed % 1000, 0
        return self.observe(0)

    def step(self, action: Tensor) -> Step:
        lanes = self.spec.num_envs
        assert action.shape == (lanes, G, 2) and action.dtype == torch.int64
        self.time += 1
        cut = torch.full((lanes,), self.time % LIMIT == 0)
        next_obs = self.observe(self.time)
        obs = self.observe(self.time + 500) if cut[0] else next_obs
        return Step(obs, action.sum(-1).float(), torch.zeros_like(cut), cut, next_obs)

    def state_dict(self) -> State:
        return {"seed": self.seed, "time": self.time}

    def load_state_dict(self, state: State) -> Obs:
        self.seed, self.time = state["seed"], state["time"]
        return self.observe(self.time + (500 if self.time and self.time % LIMIT == 0 else 0))


class TeamPolicy(Policy):
    """A linear layer per choice on all that an agent sees; it adds the steps of the episode, which it carries."""

    def __init__(self, obs: Tree, action: ActionSpec, net: NetSpec, bias: float = 0.0):
        super().__init__(obs, action, net)
        self.head = nn.Linear(16 + 3, action.num_outputs)
        self.bias = bias

    def initial_carry(self, num_lanes: int) -> Tree:
        return {"steps": torch.zeros(num_lanes, G)}

    def logits(self, obs: Obs, carry: Tree) -> Tensor:
        picture = obs.seen["picture"].flatten(-3).float() / 255
        out = self.head(torch.cat([picture, obs.seen["vector"]], -1)) + carry["steps"].unsqueeze(-1) + self.bias
        assert obs.mask is not None
        return out.masked_fill(~obs.mask, -torch.inf)

    def draw(self, num_steps: int, num_lanes: int, generator: Generator) -> list[Draw]:
        noise = torch.rand(num_steps, num_lanes, G, self.action_dim, generator=generator)
        return list(zip(noise.log().neg().log()))

    def choose(self, score: Tensor) -> Tensor:
        return torch.stack([part.argmax(-1) for part in score.split(self.action_spec.choices, -1)], -1)

    def explore(self, obs: Obs, carry: Tree, draw: Draw) -> Acted:
        out = self.logits(obs, carry)
        return Acted(self.choose(out - draw[0]), (out,), {"steps": carry["steps"] + 1})

    def act(self, obs: Obs, carry: Tree) -> tuple[Tensor, Tree]:
        return self.choose(self.logits(obs, carry)), {"steps": carry["steps"] + 1}

    def kept(self, out: Tree, action: Tensor) -> Tree:
        parts = zip(out[0].split(self.action_spec.choices, -1), action.unbind(-1), strict=True)
        return {"logp": sum(x.log_softmax(-1).gather(-1, a.unsqueeze(-1)).squeeze(-1) for x, a in parts)}


KIND = f"{__name__}:TeamPolicy"


class TeamAgent(Agent):
    """Learns nothing; looks at its batches."""

    hot = ()
    memory: ClassVar[str] = "rollout"
    actions = frozenset({"multi_discrete"})
    teams = True
    config: TeamConfig

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: torch.device, seed: int):
        super().__init__(spec, config, device, seed)
        self.policy = self.build_policy(KIND, spec, device, bias=0.5)
        self.batches: list[Any] = []

    def update(self, batch: Any) -> Update:
        self.batches.append(batch)
        self.num_updates += 1
        metrics: Metrics = {"loss/none": torch.zeros(())}
        return Update(metrics, torch.ones(len(batch.reward)) if self.memory == "prioritized" else None)


class ReplayTeam(TeamAgent):
    memory = "replay"


class PrioritizedTeam(TeamAgent):
    memory = "prioritized"


class EpisodeTeam(TeamAgent):
    memory = "episodes"


@dataclass(frozen=True, kw_only=True, slots=True)
class TeamConfig(ReplayConfig):
    """Small."""


SETTINGS = TeamConfig(batch_size=4, buffer_size=60, learning_starts=0, updates_per_step=0.1, n_step=2)
AGENTS = {"rollout": TeamAgent, "replay": ReplayTeam, "prioritized": PrioritizedTeam, "episodes": EpisodeTeam}


def actor_spec() -> PolicySpec:
    return PolicySpec(KIND, SPEC.obs, SPEC.action, NetSpec(), {"bias": 0.5})


def build_actor(seed: int = 3) -> GroupActor:
    return GroupActor(TeamEnv(), actor_spec(), seed)


def same(one: Tree, other: Tree) -> bool:
    ours, theirs = tree.named_leaves(one), tree.named_leaves(other)
    pairs = [(ours[path], theirs[path]) for path in ours]
    return ours.keys() == theirs.keys() and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def fits(obs: Tree, lead: tuple[int, ...]) -> bool:
    found = tree.named_leaves(obs)
    leaves = tree.named_leaves(OBS)
    return found.keys() == leaves.keys() and all(
        found[path].shape == (*lead, *leaf.shape) and found[path].dtype == leaf.torch_dtype
        for path, leaf in leaves.items()
    )


def test_the_environment_keeps_the_contract() -> None:
    check_env(TeamEnv(), steps=20)


def test_the_same_fragment_comes_out_of_a_process() -> None:
    weights = Weights(0, actor_spec().build(allow_import=True).to_flat())
    expected = [build_actor().sample(weights, 7, 0)]
    assert pack(expected)[0] == TREE  # not by pickle
    results = []
    for executor in (InlineExecutor(), ProcessExecutor(PRELOAD)):
        (handle,) = executor.spawn_all([build_actor])
        fragment = handle.call("sample", weights, 7, 0).result()
        results.append(tree.map_leaves(lambda x: x.clone() if isinstance(x, Tensor) else x, fragment.rollout))
        del fragment
        executor.close()
    rollout = expected[0].rollout
    assert fits(rollout.obs, (7, N)) and fits(rollout.next_obs, (7, N))
    assert rollout.action.shape == (7, N, G, 2) and rollout.reward.shape == rollout.kept["logp"].shape == (7, N, G)
    assert rollout.num_steps == 14
    assert all(same(rollout, result) for result in results)


def test_the_carry_is_reset_with_the_episode_and_travels() -> None:
    actor, weights = build_actor(), Weights(0, actor_spec().build(allow_import=True).to_flat())
    carried = [actor.sample(weights, 3, seq).rollout.carry["steps"][0, 0].item() for seq in range(4)]
    assert carried == [0.0, 3.0, 1.0, 4.0]  # episodes of five steps
    state = actor.state_dict()
    expected = actor.sample(weights, 6, 4)
    other = build_actor(seed=77)
    assert not other.load_state_dict(state).any()
    assert same(expected.rollout, other.sample(weights, 6, 4).rollout)
    score = Evaluator(TeamEnv(), actor_spec()).score(weights, 5)
    assert len(score.returns) == N


@pytest.mark.parametrize("memory", list(AGENTS))
def test_every_memory_keeps_trees_and_continues_from_a_commit(memory: str, tmp_path: Path) -> None:
    weights = Weights(0, actor_spec().build(allow_import=True).to_flat())
    actor, learner = build_actor(), Learner(find_agent(AGENTS[memory]), SETTINGS, SPEC, CPU, seed=1)
    for seq in range(4):
        assert learner.update([actor.sample(weights, 7, seq)])
    batch = learner.agent.batches[-1]  # type: ignore[union-attr, index]
    lead = tuple(batch.action.shape[: 2 if memory in ("rollout", "episodes") else 1])
    assert fits(batch.obs, lead) and fits(batch.next_obs, lead) and batch.reward.shape == (*lead, G)
    store = Store(tmp_path)
    store.commit(0, {"group0": actor.state_dict(), "learner": learner.state_dict()}, {})
    commit = store.latest_valid()
    assert commit is not None
    other, again = build_actor(9), Learner(find_agent(AGENTS[memory]), SETTINGS, SPEC, CPU, seed=2)
    other.load_state_dict(commit.load("group0"))
    again.load_state_dict(commit.load("learner"))
    for each, role in ((actor, learner), (other, again)):
        for seq in range(4, 7):
            role.update([each.sample(weights, 7, seq)])
    assert same(learner.agent.batches[-1], again.agent.batches[-1])  # type: ignore[union-attr, index]


def test_what_a_network_of_linear_layers_cannot_read_has_an_encoder_or_is_refused_by_name() -> None:
    # N4: a picture was flattened into linear layers without a word.
    picture = EnvSpec("Pong", Leaf((84, 84, 4), "uint8"), ActionSpec(choices=(6,)), 1)
    assert PolicySpec("categorical", picture.obs, picture.action).build().encoder is not None
    with pytest.raises(SpecError, match=r"the observation is uint8 of shape \(84, 84, 4\), but a network of linear"):
        NetSpec().build(Leaf((84, 84, 4), "uint8"), 6)
    with pytest.raises(SpecError, match=r"Team: the observation 'seen.picture' is uint8 of shape"):
        _ = SPEC.obs_dim


def test_an_import_path_is_followed_only_if_the_caller_allows_it() -> None:
    # R1: a file must not choose what runs.
    with pytest.raises(ValueError, match=r"names the import path '.*:TeamPolicy'"):
        actor_spec().build()
    net = NetSpec(network="os:system")
    with pytest.raises(ValueError, match="names the import path 'os:system', which would run code"):
        PolicySpec("categorical", Leaf((3,)), ActionSpec(choices=(2,)), net).build()
    nested = {"members": [actor_spec().to_json()], "weights": [1.0]}
    with pytest.raises(ValueError, match="names the import path"):
        PolicySpec("ensemble", SPEC.obs, SPEC.action, kwargs=nested).build()
    assert PolicySpec.from_json(actor_spec().to_json()) == actor_spec()


class Hoard(Replay):
    """Somebody else's memory."""


class Hoarder(TeamAgent):
    memory = f"{__name__}:Hoard"


def test_a_memory_of_ones_own_is_named_by_the_agent() -> None:
    learner = Learner(find_agent(Hoarder), SETTINGS, SPEC, CPU, seed=1)
    assert isinstance(learner.memory, Hoard)
    with pytest.raises(ValueError, match=r"there is no memory 'reply'; did you mean 'replay'\? \(or an import path"):
        build_memory("reply", learner.memory.setup)
    with pytest.raises(ValueError, match=r"the memory 'nowhere:Memory' cannot be imported \(No module"):
        build_memory("nowhere:Memory", learner.memory.setup)


def test_an_agent_for_one_refuses_a_team() -> None:
    team = EnvSpec("Team", Leaf((3,)), ActionSpec(choices=(2,)), 1, num_agents=2)
    with pytest.raises(SpecError, match="AgentPPO learns for one agent, but Team has a team of 2"):
        Learner("ppo", PPOConfig(), team, CPU, seed=0)


@pytest.mark.parametrize("name", ["ppo", "a2c", "discrete_sac", "dqn", "d3qn"])
def test_a_single_choice_is_learned(name: str) -> None:
    # C3: PPO, A2C and discrete SAC crashed on Discrete(1).
    class One(TensorEnv):
        obs_dim, action, max_episode_steps = 2, ActionSpec(choices=(1,)), 5

        def initial(self, num_rows: int) -> Tensor:
            return torch.zeros(num_rows, 2)

        def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            assert not action.any()
            return state + 1, torch.ones(len(state)), torch.zeros(len(state), dtype=torch.bool)

    replay = {"learning_starts": 0, "buffer_size": 2000, "updates_per_step": 0.02}
    for num_envs in (3, 300):  # in NumPy, and not
        env, entry = One(num_envs), find_agent(name)
        settings = {} if name in ("ppo", "a2c") else replay
        config = replace(entry.config(horizon=8, hidden=(8,), **settings), **entry.preset)
        learner = Learner(name, config, env.spec, CPU, seed=0)
        actor = GroupActor(env, learner.policy_spec(), seed=0)
        metrics: Metrics = {}
        for seq in range(6):
            metrics |= learner.update([actor.sample(learner.weights(), 8, seq)])
        assert metrics and all(bool(x.isfinite().all()) for x in metrics.values())
        assert bool(learner.weights().flat.isfinite().all())


def make_network(obs: Tree, num_outputs: int, net: NetSpec, head_gain: float, normed: bool) -> nn.Module:
    """Somebody else's network."""
    return nn.Sequential(nn.Linear(obs.shape[0], 7), nn.GELU(), nn.Linear(7, num_outputs))


def test_a_network_of_ones_own_is_named_by_a_setting() -> None:
    # N16: no own network without private parts.
    spec = EnvSpec("Made", Leaf((3,)), ActionSpec(choices=(2,)), 2)
    learner = Learner("ppo", PPOConfig(network=f"{__name__}:make_network", horizon=4), spec, CPU, seed=0)
    policy: Any = learner.agent.policy
    assert isinstance(policy.net[1], nn.GELU) and isinstance(learner.agent.value.net[1], nn.GELU)  # type: ignore
    again = learner.policy_spec().build(allow_import=True)
    assert again.to_flat().shape == policy.to_flat().shape

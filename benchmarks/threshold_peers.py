"""The other systems of time_to_threshold.py that are neither ours nor Stable-Baselines3 or SBX: one function for each.

All of them train PPO in one process, judged from inside the environment (`Watched`), so that the rule of
threshold_run.py sees every episode with its own reward, whatever the library makes of it. Settings and networks are
those of RL Baselines3 Zoo, for Hopper the defaults with eight environments, as in threshold_run.py; exceptions are in
`OWN`. The libraries' own examples were not reproduced: one run each of something close (skrl on Pendulum, without
its squashed mean; RLlib on CartPole, with eight environments) learnt more slowly on a busy machine.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from threshold_run import Rule

FOREVER = 10**9


class Ppo(NamedTuple):
    """Settings in one vocabulary; each driver says them in the words of its library."""

    envs: int
    steps: int
    """Of each environment between updates."""
    batch: int
    epochs: int
    gamma: float
    gae_lambda: float
    learning_rate: float
    entropy: float = 0.0
    value: float = 0.5
    normalize: bool = False


ZOO = {
    "CartPole-v1": Ppo(8, 32, 256, 20, 0.98, 0.8, 1e-3),
    "Pendulum-v1": Ppo(4, 1024, 64, 10, 0.9, 0.95, 1e-3),
    "LunarLander-v3": Ppo(16, 1024, 64, 4, 0.999, 0.98, 3e-4, entropy=0.01),
    "Hopper-v5": Ppo(8, 256, 64, 10, 0.99, 0.95, 3e-4, normalize=True),
}
HIDDEN = (64, 64)
# RLlib has a large cost per round, so that longer rounds end sooner
OWN = {("rllib", "CartPole-v1"): Ppo(8, 256, 256, 10, 0.98, 0.9, 1e-3)}


class Watched(gym.Wrapper[Any, Any, Any, Any]):
    """Tells the rule about every episode; inside of whatever normalises, clips or resets.

    Rule and count are of the class, for all environments: RLlib copies what it makes environments from.
    """

    rule: Rule
    steps = 0

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self.total = 0.0
        return self.env.reset(**options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if Watched.steps == 0:
            self.rule.start()
        Watched.steps += 1  # of all environments
        seen, reward, terminated, truncated, info = self.env.step(action)
        self.total += float(reward)
        if terminated or truncated:
            self.rule.see([self.total], Watched.steps)
        return seen, reward, terminated, truncated, info


def make(env: str, clip: bool = True) -> gym.Env[Any, Any]:
    """A watched environment, which takes any action and clips it, as Stable-Baselines3 does."""
    made = Watched(gym.make(env))
    return gym.wrappers.ClipAction(made) if clip and isinstance(made.action_space, gym.spaces.Box) else made


def network(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """With orthogonal initial weights, as in Stable-Baselines3."""
    sizes = [inputs, *HIDDEN]
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.Tanh()]
        nn.init.orthogonal_(layers[-2].weight, 2**0.5)
    layers.append(nn.Linear(sizes[-1], outputs))
    nn.init.orthogonal_(layers[-1].weight, gain)
    for layer in layers[::2]:
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


# ---- skrl


def train_skrl(env: str, seed: int, settings: Ppo) -> None:
    from skrl import logger
    from skrl.agents.torch.ppo import PPO, PPO_CFG
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model
    from skrl.resources.preprocessors.torch import RunningStandardScaler
    from skrl.trainers.torch import SequentialTrainer
    from skrl.utils import set_seed

    logger.setLevel("ERROR")
    set_seed(seed)
    envs = wrap_env(gym.vector.SyncVectorEnv([partial(make, env)] * settings.envs), verbose=False)
    spaces = {"observation_space": envs.observation_space, "action_space": envs.action_space, "device": "cpu"}
    discrete = isinstance(envs.action_space, gym.spaces.Discrete)

    class Policy(CategoricalMixin if discrete else GaussianMixin, Model):  # type: ignore[misc]
        def __init__(self) -> None:
            Model.__init__(self, **spaces)
            (CategoricalMixin if discrete else GaussianMixin).__init__(self)
            self.net = network(self.num_observations, self.num_actions, 0.01)
            self.log_std = nn.Parameter(torch.zeros(self.num_actions))

        def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:
            return self.net(inputs["observations"]), {} if discrete else {"log_std": self.log_std}

    class Value(DeterministicMixin, Model):  # type: ignore[misc]
        def __init__(self) -> None:
            Model.__init__(self, **spaces)
            DeterministicMixin.__init__(self)
            self.net = network(self.num_observations, 1, 1.0)

        def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:
            return self.net(inputs["observations"]), {}

    cfg = PPO_CFG(
        rollouts=settings.steps,
        learning_epochs=settings.epochs,
        mini_batches=settings.envs * settings.steps // settings.batch,
        discount_factor=settings.gamma,
        gae_lambda=settings.gae_lambda,
        learning_rate=settings.learning_rate,
        entropy_loss_scale=settings.entropy,
        value_loss_scale=settings.value,
        value_clip=0.2 if settings.normalize else 0.0,
        time_limit_bootstrap=True,
        experiment={"write_interval": 0, "checkpoint_interval": 0},
    )
    if settings.normalize:
        cfg.observation_preprocessor = cfg.value_preprocessor = RunningStandardScaler
        cfg.observation_preprocessor_kwargs = {"size": envs.observation_space, "device": "cpu"}
        cfg.value_preprocessor_kwargs = {"size": 1, "device": "cpu"}
    memory = RandomMemory(memory_size=settings.steps, num_envs=settings.envs, device="cpu")
    agent = PPO(models={"policy": Policy(), "value": Value()}, memory=memory, cfg=cfg, **spaces)
    trainer = {"timesteps": FOREVER, "headless": True, "disable_progressbar": True, "close_environment_at_exit": False}
    SequentialTrainer(cfg=trainer, env=envs, agents=agent).train()


# ---- Tianshou


def train_tianshou(env: str, seed: int, settings: Ppo) -> None:
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy, ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv, VectorEnvNormObs
    from tianshou.trainer import OnPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

    np.random.seed(seed)
    torch.manual_seed(seed)
    envs = DummyVectorEnv([partial(make, env, clip=False)] * settings.envs)
    envs = VectorEnvNormObs(envs) if settings.normalize else envs
    envs.seed(seed)
    space, shape = envs.action_space[0], envs.observation_space[0].shape
    nets = [Net(state_shape=shape, hidden_sizes=HIDDEN, activation=nn.Tanh) for _ in range(2)]
    policy: Any
    if isinstance(space, gym.spaces.Discrete):
        actor = DiscreteActor(preprocess_net=nets[0], action_shape=space.n, softmax_output=False)
        critic = DiscreteCritic(preprocess_net=nets[1])
        last, policy = actor.last, DiscreteActorPolicy(actor=actor, action_space=space)
    else:
        actor = ContinuousActorProbabilistic(preprocess_net=nets[0], action_shape=space.shape, unbounded=True)
        critic = ContinuousCritic(preprocess_net=nets[1])
        nn.init.constant_(actor.sigma_param, -0.5)
        last, policy = actor.mu, ProbabilisticActorPolicy(actor=actor, dist_fn=normal, action_space=space)
    for layer in [*actor.modules(), *critic.modules()]:
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, 2**0.5)
            nn.init.zeros_(layer.bias)
    for layer in last.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data *= 0.01
    algorithm = PPO(
        policy=policy,
        critic=critic,
        optim=AdamOptimizerFactory(lr=settings.learning_rate),
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        vf_coef=settings.value,
        ent_coef=settings.entropy,
        max_grad_norm=0.5,
        return_scaling=settings.normalize,
        recompute_advantage=settings.normalize,
    )
    collected = settings.envs * settings.steps
    collector = Collector(algorithm, envs, VectorReplayBuffer(2 * collected, settings.envs))
    params = OnPolicyTrainerParams(
        training_collector=collector,
        max_epochs=FOREVER,
        epoch_num_steps=50 * collected,
        collection_step_num_env_steps=collected,
        update_step_num_repetitions=settings.epochs,
        batch_size=settings.batch,
        verbose=False,
        show_progress=False,
    )
    algorithm.run_training(params)


def normal(location_and_scale: tuple[torch.Tensor, torch.Tensor]) -> torch.distributions.Distribution:
    return torch.distributions.Independent(torch.distributions.Normal(*location_and_scale), 1)


# ---- RLlib


def train_rllib(env: str, seed: int, settings: Ppo) -> None:
    """Everything in this process: with two cores RLlib's own processes only take them from each other."""
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else one is left in the home directory
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.connectors.env_to_module import MeanStdFilter
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    register_env("watched", lambda _: make(env))
    model = DefaultModelConfig(fcnet_hiddens=list(HIDDEN), fcnet_activation="tanh", vf_share_layers=False)
    filters = {"env_to_module_connector": lambda *_, **__: MeanStdFilter()} if settings.normalize else {}
    config = (
        PPOConfig()
        .environment("watched")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=settings.envs, **filters)
        .learners(num_learners=0)
        .rl_module(model_config=model)
        .training(
            train_batch_size_per_learner=settings.envs * settings.steps,
            minibatch_size=settings.batch,
            num_epochs=settings.epochs,
            gamma=settings.gamma,
            lambda_=settings.gae_lambda,
            lr=settings.learning_rate,
            entropy_coeff=settings.entropy,
            vf_loss_coeff=settings.value,
            vf_clip_param=float("inf"),
            clip_param=0.2,
            use_kl_loss=False,
            grad_clip=0.5,
            grad_clip_by="global_norm",
        )
        .debugging(seed=seed, log_level="ERROR")
    )
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    algorithm = config.build_algo()
    while True:
        algorithm.train()


# ---- rl_games


def train_rl_games(env: str, seed: int, settings: Ppo) -> None:
    from rl_games.common import env_configurations, vecenv
    from rl_games.common.ivecenv import IVecEnv
    from rl_games.torch_runner import Runner

    class Envs(IVecEnv):  # type: ignore[misc]
        def __init__(self) -> None:
            makers = [partial(make, env, clip=False)] * settings.envs  # the library clips and scales
            self.envs = gym.vector.SyncVectorEnv(makers, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)

        def reset(self) -> Any:
            return np.float32(self.envs.reset(seed=seed)[0])

        def step(self, actions: Any) -> tuple[Any, ...]:
            seen, rewards, terminated, truncated, _ = self.envs.step(actions)
            return np.float32(seen), rewards, terminated | truncated, {"time_outs": np.float32(truncated)}

        def get_env_info(self) -> dict[str, Any]:
            spaces = self.envs.single_observation_space, self.envs.single_action_space
            return dict(zip(("observation_space", "action_space"), spaces, strict=True))

    vecenv.register("WATCHED", lambda *_, **__: Envs())
    env_configurations.register("watched", {"vecenv_type": "WATCHED"})
    discrete = isinstance(gym.make(env).action_space, gym.spaces.Discrete)
    kind = "discrete" if discrete else "continuous"
    sigma = {"sigma_init": {"name": "const_initializer", "val": 0.0}, "sigma_activation": "None", "fixed_sigma": True}
    mean = {"mu_init": {"name": "orthogonal_initializer", "gain": 0.01}, "mu_activation": "None"}
    units = {"units": list(HIDDEN), "activation": "tanh", "initializer": {"name": "default"}}
    config: dict[str, Any] = {
        "name": "watched",
        "env_name": "watched",
        "device": "cpu",
        "num_actors": settings.envs,
        "horizon_length": settings.steps,
        "minibatch_size": settings.batch,
        "mini_epochs": settings.epochs,
        "gamma": settings.gamma,
        "tau": settings.gae_lambda,
        "learning_rate": settings.learning_rate,
        "lr_schedule": None,
        "entropy_coef": settings.entropy,
        "critic_coef": 2 * settings.value,  # the library halves it
        "e_clip": 0.2,
        "clip_value": settings.normalize,
        "truncate_grads": True,
        "grad_norm": 0.5,
        "bounds_loss_coef": 0.0,
        "normalize_advantage": True,
        "normalize_input": settings.normalize,
        "normalize_value": settings.normalize,
        "reward_shaper": {},
        "torch_compile": False,  # with it CartPole had not ended after 100 s on a busy machine
        "print_stats": False,
        "save_best_after": FOREVER,
    }
    network = {
        "name": "actor_critic",
        "separate": True,
        "space": {kind: {} if discrete else mean | sigma},
        "mlp": units,
    }
    model = {"name": "discrete_a2c" if discrete else "continuous_a2c_logstd"}
    torch.manual_seed(seed)  # the library takes a seed of 0 for none
    np.random.seed(seed)
    with tempfile.TemporaryDirectory() as config["train_dir"]:
        params = {"algo": {"name": f"a2c_{kind}"}, "model": model, "network": network, "config": config}
        runner = Runner()
        runner.load_config(params | {"seed": seed, "torch_threads": 1})
        runner.run({"train": True})


# ---- Sample Factory


def train_sample_factory(env: str, seed: int, settings: Ppo) -> None:
    """In its serial mode: everything in this process, but for one that only looks at the spaces."""
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import run_rl
    from sample_factory.utils.utils import log

    log.setLevel("ERROR")
    register_env(env, make_for_factory)
    options = {
        "env": env,
        "seed": seed,
        "device": "cpu",
        "serial_mode": True,
        "async_rl": False,
        "batched_sampling": True,  # the other way assigns arrays of one element to numbers, which numpy has no more
        "num_workers": 1,
        "num_envs_per_worker": settings.envs,
        "worker_num_splits": 1,
        "rollout": min(settings.steps, settings.batch),  # a minibatch has to hold at least one
        "batch_size": settings.batch,
        "num_batches_per_epoch": settings.envs * settings.steps // settings.batch,
        "num_epochs": settings.epochs,
        "shuffle_minibatches": True,
        "max_policy_lag": FOREVER,
        "gamma": settings.gamma,
        "gae_lambda": settings.gae_lambda,
        "learning_rate": settings.learning_rate,
        "adam_eps": 1e-5,
        "exploration_loss_coeff": settings.entropy,
        "value_loss_coeff": settings.value,
        "value_bootstrap": True,
        "ppo_clip_ratio": 0.2,
        "ppo_clip_value": 0.2 if settings.normalize else FOREVER,
        "max_grad_norm": 0.5,
        "normalize_input": settings.normalize,
        "normalize_returns": settings.normalize,
        "use_rnn": False,
        "nonlinearity": "tanh",
        "actor_critic_share_weights": False,
        "adaptive_stddev": False,
        "train_for_env_steps": FOREVER,
        "decorrelate_envs_on_one_worker": False,
        "set_workers_cpu_affinity": False,
        "log_to_file": False,
    }
    words = [f"--{name}={value}" for name, value in options.items()] + ["--encoder_mlp_layers", *map(str, HIDDEN)]
    with tempfile.TemporaryDirectory() as folder:
        words.append(f"--train_dir={folder}")
        run_rl(parse_full_cfg(parse_sf_args(words)[0], words))
    raise RuntimeError("Sample Factory logs what the environment raises and returns")


def make_for_factory(env: str, *_: Any, **__: Any) -> gym.Env[Any, Any]:
    """Here, for another process has to find it."""
    return make(env)


# ---- TorchRL


def train_torchrl(env: str, seed: int, settings: Ppo) -> None:
    from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.envs import GymWrapper
    from torchrl.modules import IndependentNormal, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    np.random.seed(seed)
    torch.manual_seed(seed)
    mode = gym.vector.AutoresetMode.DISABLED  # TorchRL resets, and then knows the last observations

    def one() -> gym.Env[Any, Any]:
        return gym.wrappers.NormalizeObservation(make(env)) if settings.normalize else make(env)

    vector = gym.vector.SyncVectorEnv([one] * settings.envs, autoreset_mode=mode)
    if settings.normalize:
        for each in vector.envs:  # TorchRL's own VecNormV2 makes NaN of a vector of environments
            each.obs_rms = vector.envs[0].obs_rms
    envs: Any = GymWrapper(vector, categorical_action_encoding=True)
    envs.set_seed(seed)
    space, inputs = vector.single_action_space, vector.single_observation_space.shape[0]
    if isinstance(space, gym.spaces.Discrete):
        policy, keys = network(inputs, int(space.n), 0.01), ["logits"]
        distribution: Any = torch.distributions.Categorical
    else:
        width = space.shape[0]
        policy = nn.Sequential(network(inputs, width, 0.01), AddStateIndependentNormalScale(width))
        keys, distribution = ["loc", "scale"], IndependentNormal
    actor = ProbabilisticActor(
        TensorDictModule(policy, in_keys=["observation"], out_keys=keys),
        in_keys=keys,
        spec=envs.action_spec_unbatched,
        distribution_class=distribution,
        return_log_prob=True,
    )
    critic = ValueOperator(network(inputs, 1, 1.0), in_keys=["observation"])
    advantage = GAE(gamma=settings.gamma, lmbda=settings.gae_lambda, value_network=critic)
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=0.2,
        entropy_bonus=settings.entropy > 0,
        entropy_coeff=settings.entropy,
        critic_coeff=settings.value,
        loss_critic_type="l2",
        normalize_advantage=True,
        log_explained_variance=False,
        functional=False,  # faster, and nothing here needs the other
    )
    optimizer = torch.optim.Adam(loss.parameters(), lr=settings.learning_rate, eps=1e-5)
    collected = settings.envs * settings.steps
    quiet = {"auto_register_policy_transforms": False}
    for batch in Collector(envs, actor, frames_per_batch=collected, total_frames=-1, **quiet):
        with torch.no_grad():
            advantage(batch)
        data = batch.reshape(-1)
        for _ in range(settings.epochs):
            for rows in torch.randperm(collected).split(settings.batch):
                losses = loss(data[rows])
                total = sum(value for key, value in losses.items() if key.startswith("loss_"))
                optimizer.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()


# ---- all


def train_peer(library: str, env: str, seed: int, rule: Rule) -> None:
    drivers = {
        "skrl": train_skrl,
        "tianshou": train_tianshou,
        "rllib": train_rllib,
        "rl_games": train_rl_games,
        "sample_factory": train_sample_factory,
        "torchrl": train_torchrl,
    }
    torch.set_num_threads(1)
    Watched.rule = rule
    drivers[library](env, seed, OWN.get((library, env), ZOO[env]))

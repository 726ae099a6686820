"""Portfolio management by a team: each agent weighs the assets of its own group, and all share one reward.

Axes: N lanes, G agents, A assets, K the most assets of a group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError
from ..types import ActionSpec, Leaf, Obs
from .portfolio import PortfolioVecEnv
from .prices import PriceTable

SECTORS: dict[str, tuple[str, ...]] = {
    "technology": ("AAPL", "AMD", "GE", "MSFT"),
    "finance": ("BAC", "JPM"),
    "energy": ("CVX", "RRC", "XOM"),
    "health": ("JNJ", "LLY", "MRK", "PFE", "UNH"),
    "consumers": ("BBY", "HD", "KO", "PEP", "PG", "WMT"),
}
"""The stocks of the prices ``sp500`` by sector; the only industrial one is with technology."""


class PortfolioTeamVecEnv(PortfolioVecEnv):
    """N accounts, each managed by a team. An agent sees weights and features of its own assets and the share of cash;
    the numbers of all agents, and a zero for cash, decide the weights together.

    ``groups`` names the assets of each agent; further arguments are those of ``PortfolioSettings``. With
    ``risk_aversion`` the one reward is adjusted for risk.
    """

    name = "PortfolioTeam"
    _places: Tensor
    _columns: Tensor

    def __init__(
        self,
        data: str | PriceTable = "sp500",
        num_envs: int = 1,
        device: torch.device | str = "cpu",
        groups: Mapping[str, Sequence[str]] | None = None,
        **settings: Any,
    ) -> None:
        self.groups = {name: tuple(members) for name, members in (groups or SECTORS).items()}
        super().__init__(data, num_envs, device, **settings)
        self._places, self._columns = self._places.to(self.device), self._columns.to(self.device)

    def set_spaces(self) -> None:
        assets = list(self.market.table.assets)
        self._check_groups(assets)
        self.agent_names, self.num_agents = tuple(self.groups), len(self.groups)
        columns = [[assets.index(name) for name in members] for members in self.groups.values()]
        widest, num_fields = max(map(len, columns)), len(self.market.table.fields)
        place = {asset: (g, k) for g, group in enumerate(columns) for k, asset in enumerate(group)}
        # Where the number of each asset is in the actions of a lane [A].
        self._places = torch.tensor([place[a][0] * widest + place[a][1] for a in range(len(assets))])
        # Which columns of the whole observation an agent sees [G, ...]; one more column holds zeros.
        seen = []
        for group in columns:
            own = [f * self.num_assets + a for a in group for f in range(num_fields)]
            seen.append([*own, *([self.num_seen] * (widest * num_fields - len(own)))])
        self._columns = torch.tensor(seen)
        self.obs = Obs(Leaf((self.num_agents, len(seen[0]) + 1)), state=Leaf((self.num_seen,)))  # type: ignore[arg-type]
        self.action = ActionSpec(dim=widest, sizes=tuple(map(len, columns)))

    def _check_groups(self, assets: Sequence[str]) -> None:
        named = [name for members in self.groups.values() for name in members]
        if sorted(named) != sorted(assets) or not all(self.groups.values()):
            odd = sorted(set(named) ^ set(assets)) or [name for name in named if named.count(name) > 1]
            raise ConfigError(
                f"env.groups must name each asset of the prices once, and each group at least one; check {odd[:5]}"
            )

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        after, reward, ruined = super().dynamics(state, self.joined(action))
        assert self.num_agents is not None
        return after, (reward / self.num_agents).unsqueeze(1).expand(-1, self.num_agents).contiguous(), ruined

    def observe(self, state: Tensor) -> Obs:  # type: ignore[override]
        return self.shared_out(super().observe(state))

    def joined(self, action: Tensor) -> Tensor:
        """The actions of a team [N, G, K] as one action of ``PortfolioVecEnv``."""
        numbers = action.flatten(1)[:, self._places]
        return numbers if self.settings.short else torch.cat([numbers, numbers.new_zeros(len(numbers), 1)], 1)

    def shared_out(self, whole: Tensor) -> Obs:
        """What each agent sees of an observation of ``PortfolioVecEnv``, and all of it for the central value."""
        padded = torch.cat([whole, whole.new_zeros(len(whole), 1)], 1)
        weights = whole[:, : self.num_assets]
        cash = (1 - weights.sum(1))[:, None, None].expand(-1, len(self._columns), 1)
        return Obs(torch.cat([padded[:, self._columns], cash], 2), state=whole)

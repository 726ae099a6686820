"""Settings of the trading environments; limits and types are checked, and a bad value is one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..config.fields import Section, setting
from ..errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class MarketSettings(Section):
    """What all trading environments have in common."""

    section: ClassVar[str] = "env"

    period: str | None = None
    """START:END of the dates that can be traded, e.g. 1990:2012; None: all dates of the prices."""
    assets: tuple[str, ...] = ()
    """Assets that can be traded; empty: all of the prices."""
    episode_steps: int | None = setting(None, ge=1)
    """Steps of an episode; None: to the end of the period."""
    random_start: bool = False
    """Whether an episode begins at a random date of the period."""
    cash: float = setting(1_000_000.0, gt=0.0)
    """Money at the beginning of an episode."""
    random_cash: float = setting(0.0, ge=0.0, lt=1.0)
    """Each episode begins with the cash times a random number in [1 - x, 1 + x]."""
    cost: float = setting(0.001, ge=0.0, lt=1.0)
    """Transaction cost as a share of the traded value, for buying and for selling."""
    risk_aversion: float = setting(0.0, ge=0.0)
    """The reward of a step is 100 * (log growth - risk_aversion / 2 * return squared)."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.random_start and self.episode_steps is None:
            raise ConfigError(
                "env.random_start=True needs env.episode_steps, the length of an episode; 252 steps are a year of days"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class StockSettings(MarketSettings):
    """Stock trading: cash and whole shares."""

    max_trade: float = setting(0.05, gt=0.0, le=1.0)
    """The value of an order for an action of 1, as a share of the account's value."""
    max_shares: int | None = setting(None, ge=1)
    """Shares of an order for an action of 1, instead of ``max_trade``."""
    min_trade: float = setting(0.1, ge=0.0, lt=1.0)
    """Actions below this size are no orders."""
    turbulence_limit: float | None = setting(None, gt=0.0)
    """Above this turbulence everything is sold and nothing is bought; None: never."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PortfolioSettings(MarketSettings):
    """Portfolio weights: fractions of assets, long only or long and short."""

    short: bool = False
    """Whether positions may be negative; then an action of an asset is its weight relative to ``leverage``."""
    leverage: float = setting(1.0, gt=0.0, le=10.0, only_with={"short": True})
    """The sum of the absolute weights is at most this."""

    def __post_init__(self) -> None:
        MarketSettings.__post_init__(self)
        if self.cost * self.leverage >= 0.5:
            raise ConfigError(
                f"env.cost={self.cost} with env.leverage={self.leverage} would take half of the account; lower one"
            )

"""Names that are found later, and suggestions for unknown ones."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import did_you_mean

LATE = {
    "StockTrading": "elegantrl.finance:StockTradingVecEnv",
    "Portfolio": "elegantrl.finance:PortfolioVecEnv",
    "PortfolioTeam": "elegantrl.finance:PortfolioTeamVecEnv",
}
"""Environments of this library that are imported at their first use; their prices need the extra ``finance``."""


def suggest(name: str, known: Iterable[str], otherwise: str) -> str:
    """The nearest known names, or ``otherwise`` where none is near: there are too many names to list them."""
    hint = did_you_mean(name, known)
    return hint if hint.startswith("did you mean") else otherwise

"""Trading: prices, environments, back-tests and their report; docs/finance.md is the tutorial."""

from .features import with_features
from .loaders import download, from_arrays, from_frame, load_prices
from .portfolio import PortfolioEnv, PortfolioVecEnv
from .prices import PriceTable, load_table, parse_period
from .stock import StockTradingEnv, StockTradingVecEnv
from .team import PortfolioTeamVecEnv

__all__ = [
    "PortfolioEnv",
    "PortfolioTeamVecEnv",
    "PortfolioVecEnv",
    "PriceTable",
    "StockTradingEnv",
    "StockTradingVecEnv",
    "download",
    "from_arrays",
    "from_frame",
    "load_prices",
    "load_table",
    "parse_period",
    "with_features",
]

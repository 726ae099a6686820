# %% [markdown]
# # Stock trading: from real prices to an audited back-test
#
# Train PPO on daily prices of 20 stocks from 1990 to 2012, choose a snapshot by the years 2013 to 2016, and test the
# choice on 2017 to 2022 beside five baselines. It takes some minutes on one core. Nothing here is advice.

# %%
# Only on Colab: write the address of the repository that this notebook comes from. Elsewhere nothing happens here.
import subprocess
import sys

REPOSITORY = ""  # https://...
if "google.colab" in sys.modules:
    if not REPOSITORY:
        raise ValueError("REPOSITORY is empty: write the address from which you cloned elegantrl")
    subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", f"elegantrl[finance] @ git+{REPOSITORY}"])

# %%
import numpy as np
from matplotlib import pyplot as plt

from elegantrl.finance import StockTradingEnv, load_prices, with_features
from elegantrl.finance.experiment import ExperimentConfig, run_experiment
from elegantrl.finance.results import backtest

# %% [markdown]
# ## Prices
#
# They come inside the package skfolio. Your own: `load_prices("prices.csv")` with columns date, tic, close, or with a
# column per stock.

# %%
prices = load_prices("sp500")
print(f"{len(prices.dates):,} days, {len(prices.assets)} stocks")
plt.semilogy(prices.dates, prices.close / prices.close[0], lw=0.6)
plt.ylabel("price, start = 1")

# %% [markdown]
# ## What an agent sees
#
# Indicators of each stock relative to its price; each is computed from the past alone.

# %%
seen = with_features(prices)
print(seen.fields)
env = StockTradingEnv(prices, period="2013:2016")
obs, _ = env.reset(seed=0)
obs, reward, _, _, account = env.step(np.full(20, 0.5, dtype=np.float32))
print(f"an observation has {obs.size} numbers; the first trades cost {account['cost']:,.0f} of {account['value']:,.0f}")

# %% [markdown]
# ## Train and choose
#
# Each run keeps the snapshot that does best on the validation period. The test period is not read.

# %%
config = ExperimentConfig(agents=("ppo",), seeds=2, max_steps=100_000, snapshots=5)
done = run_experiment(config, "runs/notebook_stocks", say=print)

# %% [markdown]
# ## Back-test
#
# The report, `runs/notebook_stocks/report.html`, has everything on one page; here is its table.

# %%
found = backtest(done.folder)
for row in found.rows:
    figures = row.performance
    print(f"{row.ledger.name:18} {figures.annual_return:+7.1%} a year, Sharpe {figures.sharpe:5.2f}")

# %%
for row in found.rows:
    width, value = 2 if row is found.main else 0.8, row.ledger.value
    plt.plot(row.ledger.dates, value / value[0], lw=width, label=row.ledger.name)
plt.yscale("log")
plt.legend(fontsize=7)

# %% [markdown]
# An interval of a difference of Sharpe ratios that holds 0 means that six years cannot tell the two strategies apart.

# %%
for row in found.rows[1:]:
    gap = row.against
    print(f"{found.main.ledger.name} minus {row.ledger.name:18} {gap.value:+.2f} ({gap.low:+.2f} .. {gap.high:+.2f})")

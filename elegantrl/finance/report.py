"""The page of a back-test: one HTML file with figures as SVG, without scripts and without the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files

import numpy as np

from ..report.style import COLOURS
from .figures import Series, legend, line_figure, monthly_table
from .metrics import BLOCK, RESAMPLES, drawdowns
from .prices import Array, day
from .results import Backtest, Row

MAIN, OTHERS = COLOURS[0], "#a9bfce"
SMOOTH = 21
"""Bars over which turnover is averaged in its figure."""


def number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "-"


COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("return", lambda r: number(r.performance.cumulative_return, "+.1%")),
    ("per year", lambda r: number(r.performance.annual_return, "+.1%")),
    ("volatility", lambda r: number(r.performance.annual_volatility, ".1%")),
    ("max drawdown", lambda r: number(r.performance.max_drawdown, ".1%")),
    ("Sharpe", lambda r: number(r.performance.sharpe, ".2f")),
    ("Sharpe, 95 %", lambda r: f"{number(r.sharpe.low, '.2f')} .. {number(r.sharpe.high, '.2f')}"),
    ("Sortino", lambda r: number(r.performance.sortino, ".2f")),
    ("Calmar", lambda r: number(r.performance.calmar, ".2f")),
    ("turnover per year", lambda r: number(r.yearly_turnover, ".1f")),
    ("costs", lambda r: number(r.costs, ",.0f")),
)


def render(found: Backtest) -> str:
    """The whole page."""
    ledger = found.main.ledger
    period = f"{day(ledger.dates[0])} to {day(ledger.dates[-1])}"
    sections = [
        f"<h1>Back-test: {escape(found.title)}</h1>",
        f'<p class="status">{period}, {len(ledger.dates):,} bars, {len(ledger.assets)} assets, from'
        f" {ledger.value[0]:,.0f} to {ledger.value[-1]:,.0f}; the validation period chose this strategy</p>",
        facts(found),
        section("Strategies", table(found.rows), "all from cash, with the same costs and a delay of one bar"),
        *figures(found),
        section("Returns by month", monthly_table(ledger.dates, ledger.value), f"{escape(ledger.name)}, percent"),
        section("How to read this", notes(found)),
        section("Settings", settings(found)),
    ]
    template = files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    return template.replace("{{title}}", escape(found.title)).replace("{{body}}", "\n".join(sections))


def section(title: str, body: str, small: str = "") -> str:
    note = f"<small>{small}</small>" if small else ""
    return f"<section><h2>{title}{note}</h2>{body}</section>"


def facts(found: Backtest) -> str:
    row = found.main
    shown = {
        "return": f"{row.performance.cumulative_return:+.1%}",
        "per year": f"{row.performance.annual_return:+.1%}",
        "Sharpe ratio": number(row.performance.sharpe, ".2f"),
        "max drawdown": f"{row.performance.max_drawdown:.1%}",
        "costs paid": f"{row.costs:,.0f}",
        "policies tried": f"{found.tried.policies:,}",
    }
    return (
        '<section class="facts">'
        + "".join(f"<div><b>{v}</b><span>{k}</span></div>" for k, v in shown.items())
        + "</section>"
    )


def table(rows: Sequence[Row]) -> str:
    head = "".join(f"<th>{name}</th>" for name, _ in COLUMNS)
    lines = [f"<tr><th>strategy</th>{head}<th>Sharpe of the first minus this, 95 %</th></tr>"]
    for row in rows:
        gap = row.against
        text = ""
        if gap is not None and math.isfinite(gap.value):
            text = f"{gap.value:+.2f} ({gap.low:+.2f} .. {gap.high:+.2f})"
        kind = "main" if row is rows[0] else "baseline" if row.is_baseline else ""
        cells = "".join(f"<td>{show(row)}</td>" for _, show in COLUMNS)
        lines.append(f'<tr class="{kind}"><td class="name">{escape(row.ledger.name)}</td>{cells}<td>{text}</td></tr>')
    return f"<table>{''.join(lines)}</table>"


def figures(found: Backtest) -> list[str]:
    """Equity, drawdown, exposure, turnover and costs."""
    main, dates = found.main.ledger, found.main.ledger.dates
    baselines = [row.ledger for row in found.rows if row.is_baseline]
    others = [row.ledger for row in found.rows[1:] if not row.is_baseline]
    colours = dict(zip((x.name for x in baselines), (*COLOURS[1:], *COLOURS), strict=False))
    equity = [
        *(Series("other trained policies", x.value / x.value[0], OTHERS, 0.8) for x in others),
        *(Series(x.name, x.value / x.value[0], colours[x.name]) for x in baselines),
        Series(main.name, main.value / main.value[0], MAIN, 2.4),
    ]
    deepest = [
        *(Series(x.name, drawdowns(x.returns), colours[x.name], 1.0) for x in baselines if x.name == "buy and hold"),
        Series(main.name, drawdowns(main.returns), MAIN, 2.0),
    ]
    names = legend(list({s.name: s for s in equity}.values()))
    paid = np.cumsum(main.cost) / main.value[0]
    one = f"{escape(main.name)}"
    return [
        section("Equity", line_figure(dates, equity, "equity", log=True) + names, "start = 100 %"),
        section("Drawdown", line_figure(dates[1:], deepest, "drawdown") + legend(deepest)),
        section("Exposure", line_figure(dates, [Series(main.name, main.exposure, MAIN)], "exposure"),
                f"{one}: sum of absolute positions relative to the value"),
        section("Turnover", line_figure(dates[1:], [Series(main.name, smoothed(main.turnover), MAIN)], "turnover"),
                f"{one}: bought and sold per bar relative to the value, mean of {SMOOTH} bars"),
        section("Costs", line_figure(dates, [Series(main.name, paid, MAIN)], "costs"),
                f"{one}: sum of transaction costs relative to the start"),
    ]  # fmt: skip


def smoothed(x: Array) -> Array:
    """The mean of the last bars."""
    sums = np.concatenate([[0.0], np.cumsum(x)])
    first = np.maximum(np.arange(1, len(x) + 1) - SMOOTH, 0)
    last = np.arange(1, len(x) + 1)
    return np.asarray((sums[last] - sums[first]) / (last - first))


def notes(found: Backtest) -> str:
    checked = found.audit
    points = [
        "A decision at the close of one bar is executed at the close of the next. Cash earns no interest, dividends are"
        " in the adjusted prices, and orders do not move the market.",
        "Sharpe, Sortino and volatility are annualised from returns per bar with a risk-free rate of 0. Turnover counts"
        " purchases and sales.",
        f"The intervals come from {RESAMPLES:,} resamples of blocks of {BLOCK} bars of both strategies at once. An"
        " interval that holds 0 means that this test period cannot tell the two apart.",
        f"{found.tried.runs:,} training runs of {found.tried.configurations:,} configurations gave"
        f" {found.tried.policies:,} policies among which the validation period chose. The more are tried, the more of a"
        " good validation score is luck. The test period chose nothing.",
        f"Audit: with other prices after {', '.join(checked.cuts)}, everything up to these dates stayed the same bit"
        " for bit, features included. Value before = value after + costs holds to"
        f" {checked.accounting_error:.0e} of the value.",
        "Prices of companies that exist today leave out those that failed, which flatters every strategy on them, the"
        " baselines included.",
    ]
    return "<ul>" + "".join(f"<li>{text}</li>" for text in points) + "</ul>"


def settings(found: Backtest) -> str:
    rows = "".join(
        f'<tr><td class="name">{escape(str(k))}</td><td>{escape(str(v))}</td></tr>' for k, v in found.settings.items()
    )
    return f"<details><summary>all settings of the experiment</summary><table class='settings'>{rows}</table></details>"

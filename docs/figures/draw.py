"""Draws the figures of the pages: `python docs/figures/draw.py` writes the SVG files beside this script."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

INK, SOFT, LINE = "#1f2933", "#52606d", "#7b8794"
BLUE, GREEN, ORANGE, PURPLE, GREY = "#d6e6f5", "#d9eedd", "#fbe3cd", "#e7def5", "#eceff2"
FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"


class Figure:
    """A drawing of boxes, arrows and words on a white ground, so that it can be read in a dark page too."""

    def __init__(self, width: int, height: int, title: str):
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, text: str, note: str = "", fill: str = BLUE) -> None:
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="7" fill="{fill}" stroke="{LINE}" stroke-width="1.2"/>'
        )
        notes = note.split("\n") if note else []
        top = y + h / 2 + 5 - 8.5 * len(notes)
        self.text(x + w / 2, top, text, bold=True)
        for i, line in enumerate(notes):
            self.text(x + w / 2, top + 18 + 16 * i, line, size=12, color=SOFT)

    def frame(self, x: float, y: float, w: float, h: float, text: str) -> None:
        """A dashed border with a heading, for things that hold others."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="9" fill="none" stroke="{LINE}" stroke-width="1.2"'
            ' stroke-dasharray="6 4"/>'
        )
        self.text(x + 12, y + 20, text, size=13, color=SOFT, anchor="start")

    def bar(self, x: float, y: float, w: float, text: str, fill: str) -> None:
        """A stretch of time."""
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="26" rx="4" fill="{fill}" stroke="{LINE}"/>')
        self.text(x + w / 2, y + 17.5, text, size=12)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: int = 14,
        bold: bool = False,
        color: str = INK,
        anchor: str = "middle",
    ) -> None:
        style = f'font-size="{size}" fill="{color}" text-anchor="{anchor}"' + (' font-weight="600"' if bold else "")
        self.parts.append(f'<text x="{x}" y="{y}" {style}>{escape(words)}</text>')

    def arrow(
        self, points: Sequence[tuple[float, float]], label: str = "", at: tuple[float, float] | None = None
    ) -> None:
        path = " ".join(f"{x},{y}" for x, y in points)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{INK}" stroke-width="1.5" marker-end="url(#head)"/>'
        )
        if label:
            (x0, y0), (x1, y1) = points[0], points[-1]
            x, y = at or ((x0 + x1) / 2, (y0 + y1) / 2 - 7)
            self.text(x, y, label, size=12, color=SOFT)

    def svg(self) -> str:
        head = (
            '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0,0 L10,5 L0,10 z" fill="{INK}"/></marker>'
        )
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}"'
            f' height="{self.height}" font-family="{FONT}" role="img">',
            f"<title>{escape(self.title)}</title>",
            f"<defs>{head}</defs>",
            f'<rect width="{self.width}" height="{self.height}" rx="8" fill="white"/>',
            *self.parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def roles() -> Figure:
    f = Figure(
        860, 330, "Workers act, learners learn, an evaluator scores policies, a supervisor decides, a store keeps"
    )
    for i, y in enumerate((30, 118)):
        f.box(30, y, 190, 70, "worker", f"group {i}: 4 environments\nand a copy of the policy", BLUE)
    f.text(125, 216, "... more workers", size=12, color=SOFT)
    f.box(345, 70, 170, 80, "supervisor", "what to ask for next,\nwhen to stop", GREY)
    f.box(640, 30, 190, 70, "learner", "memory and agent", GREEN)
    f.box(640, 140, 190, 70, "evaluator", "own environments,\nown seeds", ORANGE)
    f.box(345, 240, 170, 62, "store", "commits, best policy", PURPLE)
    f.arrow([(220, 55), (345, 95)], "fragments", (285, 62))
    f.arrow([(345, 125), (220, 150)], "weights", (285, 158))
    f.arrow([(515, 88), (640, 58)], "fragments", (572, 60))
    f.arrow([(640, 84), (515, 108)], "weights", (588, 112))
    f.arrow([(515, 132), (640, 168)], "weights", (592, 144))
    f.arrow([(640, 192), (515, 142)], "score", (568, 182))
    f.arrow([(430, 150), (430, 240)], "a commit of all roles", (504, 200))
    return f


def levels() -> Figure:
    f = Figure(860, 250, "Parallelism from the inside out: lanes, groups, workers, learners, members, nodes")
    f.frame(12, 12, 836, 226, "cluster: nodes that share a store")
    f.frame(28, 44, 640, 178, "population: members, each a run of its own")
    f.frame(44, 76, 420, 130, "run")
    f.box(60, 108, 180, 80, "worker", "groups of lanes;\none forward pass per group", BLUE)
    f.box(264, 108, 180, 80, "learner", "critics in one product;\nranks average gradients", GREEN)
    f.box(488, 92, 160, 50, "run", "", BLUE)
    f.box(488, 156, 160, 50, "run", "", BLUE)
    f.box(692, 62, 140, 66, "node", "more members", GREY)
    f.box(692, 146, 140, 66, "node", "more workers", GREY)
    return f


def pipeline() -> Figure:
    f = Figure(860, 290, "With a lag of zero one side waits for the other; with a lag of one they overlap")
    f.text(
        20, 28, "max_lag 0: every fragment is made with the newest weights; one side waits", anchor="start", bold=True
    )
    f.text(20, 62, "workers", size=12, color=SOFT, anchor="start")
    f.text(20, 98, "learner", size=12, color=SOFT, anchor="start")
    for i in range(4):
        f.bar(90 + 180 * i, 44, 90, f"act {i + 1}", BLUE)
        f.bar(180 + 180 * i, 80, 90, f"update {i + 1}", GREEN)
    f.text(
        20,
        160,
        "max_lag 1: workers are one fragment ahead; the order is fixed, so a run still repeats",
        anchor="start",
        bold=True,
    )
    f.text(20, 194, "workers", size=12, color=SOFT, anchor="start")
    f.text(20, 230, "learner", size=12, color=SOFT, anchor="start")
    for i in range(8):
        if i < 7:
            f.bar(90 + 90 * i, 176, 90, f"act {i + 1}", BLUE)
        if i > 0:
            f.bar(90 + 90 * i, 212, 90, f"update {i}", GREEN)
    f.text(
        90,
        262,
        "act 3 uses the weights after update 1, because update 2 has not ended",
        size=12,
        color=SOFT,
        anchor="start",
    )
    return f


def ensembles() -> Figure:
    f = Figure(860, 256, "Several critics form one target; several policies form one action")
    f.text(215, 30, "critics, while learning", bold=True)
    for i in range(4):
        f.box(30 + 100 * i, 52, 84, 46, f"Q{i + 1}", "", GREEN)
    f.box(115, 150, 200, 66, "target", "min, mean, or min of a\nrandom subset", GREY)
    for i in range(4):
        f.arrow([(72 + 100 * i, 98), (170 + 30 * i, 150)])
    f.text(215, 240, "all critics are one batched product", size=12, color=SOFT)
    f.text(645, 30, "policies, when acting", bold=True)
    for i, name in enumerate(("run a", "run b", "run c")):
        f.box(470 + 125 * i, 52, 100, 46, name, "", BLUE)
        f.arrow([(520 + 125 * i, 98), (605 + 40 * i, 150)])
    f.box(545, 150, 200, 66, "one action", "weighted average of\nnumbers or votes", GREY)
    f.text(645, 240, "elegantrl eval runs/a runs/b runs/c", size=12, color=SOFT)
    return f


def population() -> Figure:
    f = Figure(
        860,
        300,
        "A population: members train, the updater scores them, the leaderboard keeps the best, the generator copies",
    )
    f.frame(20, 20, 330, 250, "training pool")
    for i, (agent, y) in enumerate((("ppo", 52), ("sac", 122), ("td3", 192))):
        f.box(44, y, 280, 58, f"member {i + 1}: {agent}", "one period of training", BLUE)
    f.box(440, 52, 170, 58, "updater", "fresh episodes", ORANGE)
    f.box(660, 110, 180, 82, "leaderboard", "weights, optimisers,\nhyper-parameters, score", PURPLE)
    f.box(440, 192, 170, 58, "generator", "copy and change", GREEN)
    f.arrow([(350, 81), (440, 81)], "results", (395, 72))
    f.arrow([(610, 81), (750, 81), (750, 110)], "enters, or not", (690, 72))
    f.arrow([(750, 192), (750, 221), (610, 221)], "a parent", (690, 240))
    f.arrow([(440, 221), (350, 221)], "new member", (395, 212))
    return f


def cloud() -> Figure:
    f = Figure(
        860,
        300,
        "Ray on several nodes: the head holds supervisor and learner, other nodes hold workers, a store outlives all",
    )
    f.frame(20, 20, 640, 258, "Ray cluster, on Kubernetes by KubeRay")
    f.box(44, 60, 200, 86, "head node", "supervisor, learner,\nGCS of Ray", GREY)
    for i in range(2):
        f.box(330 + 160 * i, 60, 144, 86, f"worker node {i + 1}", "workers, evaluator", BLUE)
    f.box(330, 176, 304, 76, "spot nodes", "may vanish; their work is done again\nwith the same result", ORANGE)
    f.arrow([(244, 90), (330, 90)], "weights", (287, 82))
    f.arrow([(330, 118), (244, 118)], "fragments", (287, 134))
    f.box(700, 90, 140, 110, "store", "shared folder or\nobject store:\ncommits, log", PURPLE)
    f.arrow([(144, 146), (144, 262), (770, 262), (770, 200)], "commits", (220, 254))
    return f


def episode_end() -> Figure:
    f = Figure(
        860,
        230,
        "At the end of an episode Step.obs is the next episode's first observation, Step.next_obs the old one's last",
    )
    for i, (name, fill) in enumerate((("s0", BLUE), ("s1", BLUE), ("s2", BLUE), ("s3", ORANGE))):
        f.box(40 + 130 * i, 50, 80, 46, name, "", fill)
        if i < 3:
            f.arrow([(120 + 130 * i, 73), (170 + 130 * i, 73)], f"a{i}")
    f.box(640, 50, 80, 46, "t0", "", GREEN)
    f.text(680, 36, "next episode", size=12, color=SOFT)
    f.text(470, 36, "episode ends", size=12, color=SOFT)
    f.text(40, 140, "the step of a2 returns", anchor="start", bold=True)
    f.text(40, 166, "next_obs = s3", anchor="start", size=13)
    f.text(160, 166, "the true successor, from which the agent learns", anchor="start", size=13)
    f.text(40, 188, "obs = t0", anchor="start", size=13)
    f.text(160, 188, "already reset: the policy acts on it in the next step", anchor="start", size=13)
    f.text(
        40,
        210,
        "terminated: s3 has no value.   truncated: cut by a time limit, s3 still has one.",
        anchor="start",
        size=13,
    )
    return f


FIGURES = {f.__name__: f for f in (roles, levels, pipeline, ensembles, population, cloud, episode_end)}


def main(folder: Path) -> None:
    for name, draw in FIGURES.items():
        (folder / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)

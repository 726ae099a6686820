"""The documentation site builds without a warning, and every link, picture and figure on it is there.

There is no network here: links to other sites are only checked for their form.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections import defaultdict
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import elegantrl
from elegantrl.registry import agent_names
from tests.pages import DOCS, blocks_of

ON_THE_PAGE_OF = {"ippo": "mappo"}
"""Agents that share a page with another one."""


class Links(HTMLParser):
    """What a page refers to, and what can be referred to on it."""

    def __init__(self, page: Path):
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []  # by the browser, without a click
        self.ids: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids.add(values.get("id", ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if "src" in values:
            self.loaded.append(values["src"])
        if tag == "link" and values.get("rel") in ("stylesheet", "icon"):
            self.loaded.append(values["href"])


class Site:
    """The built pages."""

    def __init__(self, folder: Path):
        self.folder = folder

    @cached_property
    def pages(self) -> dict[Path, Links]:
        return {path.resolve(): Links(path) for path in sorted(self.folder.rglob("*.html"))}

    def missing(self, page: Path, link: str) -> str:
        """What is wrong with a link; empty if nothing is."""
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            return "" if parts.scheme in ("http", "https") and "." in parts.netloc else "not an address"
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        if not target.is_file():
            return "no such file"
        if parts.fragment and target in self.pages and unquote(parts.fragment) not in self.pages[target].ids:
            return "no such place"
        return ""


@pytest.mark.timeout(900)
def test_the_site_builds_and_everything_on_it_is_there(tmp_path: Path) -> None:
    """One test, because the site takes ten seconds to build."""
    build = pytest.importorskip("sphinx.cmd.build", reason="needs the extra docs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of Sphinx itself; warnings about pages end the build
        code = build.build_main(
            ["-q", "-W", "-b", "html", "-d", str(tmp_path / "trees"), str(DOCS), str(tmp_path / "html")]
        )
    assert code == 0
    site = Site(tmp_path / "html")
    require_pages(site)
    require_links(site)
    require_settings(site)
    require_text(site)


def require_pages(site: Site) -> None:
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md") if "_build" not in path.parts}
    assert pages <= {path.relative_to(site.folder.resolve()) for path in site.pages}


def require_links(site: Site) -> None:
    """Every link leads somewhere, and nothing is loaded from the network."""
    wrong = [
        f"{page.relative_to(site.folder)}: {link}: {problem}"
        for page, found in site.pages.items()
        for link in {*found.links, *found.loaded}
        if (problem := site.missing(page, link))
    ]
    assert not wrong
    assert not {link for found in site.pages.values() for link in found.loaded if urlsplit(link).netloc}


def require_settings(site: Site) -> None:
    """The preset of a name counts: double_dqn has ``double`` on, dqn has it off."""
    for name, double in (("dqn", "False"), ("double_dqn", "True")):
        text = (site.folder / "algorithms" / f"{name}.html").read_text(encoding="utf-8")
        tables = text.partition('class="settings')[2]
        row = tables.partition('<span class="pre">double</span>')[2].partition("</tr>")[0]
        assert f'<span class="pre">{double}</span>' in row
        assert "The online network selects the next action" in row


def require_text(site: Site) -> None:
    """Options keep their dashes, flags are those of the command line, and no prime or bar becomes a dot."""
    results, settings = ((site.folder / f"{name}.html").read_text(encoding="utf-8") for name in ("results", "settings"))
    assert "ppo --agent.memory none" in results
    flags = settings.partition('id="environment"')[2].partition('id="training"')[0]
    assert '<span class="pre">env_kwargs</span>' in flags and '<span class="pre">kwargs</span>' not in flags
    equations = [path.read_text(encoding="utf-8") for path in (site.folder / "algorithms").glob("*.html")]
    assert not [text for text in equations if re.search(r"<mi>&#x02032;</mi></m(sub)?sup>|&#x000AF;", text)]
    assert any("<mrow><msub><mi>o</mi><mn>1</mn></msub><mo" in text for text in equations)  # of MADDPG: o_1'


def test_every_agent_has_a_page_with_its_settings() -> None:
    shown: dict[str, set[str]] = defaultdict(set)
    for path in sorted((DOCS / "algorithms").glob("*.md")):
        for block in blocks_of(f"algorithms/{path.name}"):
            shown[path.stem].add(block.language)
    for name in agent_names():
        page = ON_THE_PAGE_OF.get(name, name)
        assert f"{{settings}} {page}" in shown[page]


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md"))
    shown = set(re.findall(r"^\.\. auto(?:class|function):: elegantrl\.(\w+)(?:\(\))?$", text, re.M))
    assert {*elegantrl._MODULES, "train"} - {"ElegantRLError"} <= shown  # the errors are a table


def test_figures_are_those_of_the_script(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("draw", DOCS / "figures" / "draw.py")
    assert spec is not None and spec.loader is not None
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    draw.main(tmp_path)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "figures").glob("*.svg")}
    assert drawn == kept

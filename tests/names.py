"""Names of agents by what they train."""

from __future__ import annotations

from elegantrl.registry import agent_names, find_agent

TEAM_AGENTS = [name for name in agent_names() if find_agent(name).agent.teams]
SINGLE_AGENTS = [name for name in agent_names() if name not in TEAM_AGENTS]

"""Agents that train teams."""

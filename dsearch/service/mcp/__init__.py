"""Agents: the collections as tools of the Model Context Protocol, over HTTP (`/mcp`) and stdin and stdout."""

"""Commands that keep running: an MCP server for agents, a watch over a folder."""

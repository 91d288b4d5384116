"""From text to hits: queries, search, pagination, attention over HTTP."""

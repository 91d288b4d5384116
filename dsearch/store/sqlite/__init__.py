"""SQLite: connections, schema, journal, watermark."""

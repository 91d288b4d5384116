"""Backup, compaction, migration, verification, statistics."""

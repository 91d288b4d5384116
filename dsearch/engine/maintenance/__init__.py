"""Backup, compaction, migration, verification."""

"""Servers of tests, which wait for a query as long as a busy machine needs."""

from __future__ import annotations

from functools import partial

from dsearch.service import create_app

# By default a query has 2 s, then the answer is 504: a busy machine is no reason for a test to fail.
patient_app = partial(create_app, query_timeout_s=30)

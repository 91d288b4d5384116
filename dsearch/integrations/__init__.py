"""Adapters for other frameworks: one module a framework, each with an extra of that name.

A framework is imported by its module only: `from dsearch.integrations.langchain import DSearchVectorStore`.
All take what has the calls of the clients: `dsearch.Client`, or `dsearch.open("index")` without a server.
"""

"""Routes in the shapes of other APIs, so that their clients can ask this service: one module an API.

Requests are strict: a member that has no meaning here is accepted only if the API's clients send it, and says
so. Errors have the members that these clients parse (wire/error_shapes.py).
"""

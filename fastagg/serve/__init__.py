"""A server that people start: ``fastagg serve``. A model in parts over HTTP, each part a durable server of its own.

It needs the extra ``serve``. Its client is :class:`fastagg.clients.HttpClient`.
"""

"""Serves a model over HTTP (``fastagg serve``). Each part of the model is a server with a folder of its own.

This package needs the packages of the extra ``serve``. Clients use :class:`fastagg.clients.HttpClient`.
"""

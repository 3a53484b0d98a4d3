"""``fastagg serve``: a model in parts over HTTP, where each part is a durable server of its own.

It needs the extra ``serve``. Its client is :class:`fastagg.clients.HttpClient`.
"""

"""The asyncio client: the same streams as asynchronous iterators."""

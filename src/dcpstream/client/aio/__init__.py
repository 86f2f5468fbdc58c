"""The asyncio shell: `AsyncClient`, over `AsyncSockets`, which holds one transport of the event loop per connection."""

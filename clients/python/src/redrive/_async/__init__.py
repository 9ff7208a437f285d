"""The asynchronous client, on httpx. `scripts/unasync.py` generates the shared part of `redrive._sync` from these modules."""

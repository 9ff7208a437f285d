"""The synchronous client, on the standard library. Mostly generated from `redrive._async`."""

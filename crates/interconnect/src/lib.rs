//! Links between nodes: handshake, channels, credits, calls, and the worker loop with its Service.

"""Recording what really ran, reading it, and proving it. Knows operations and caches; no models, no generation."""

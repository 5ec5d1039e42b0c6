"""What measurements do to an engine in their own process: they change its cache and knobs, and time its steps."""

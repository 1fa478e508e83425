"""The chat on a whole screen; installs as `edgespec.tui`."""

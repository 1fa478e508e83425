"""Turning checkpoints into files the runtime can load; installs as `edgespec.exporters`."""

"""Run containers as local processes: environment, start and restarts."""

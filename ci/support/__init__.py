"""What ci/setup, ci/demo and ci/test share; standard library only: it runs before .venv exists."""

"""Code that the programs in ci/ share. It needs only the standard library, since it runs before
.venv exists."""

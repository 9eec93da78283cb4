"""The checks of scripts/lint. Each module has check(...) -> list of "file:line: message"; empty means clean."""

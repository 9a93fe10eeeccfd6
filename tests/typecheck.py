"""The run-time checker of array shapes. Everything else is checked by the package and by mypy."""

from typing import Any

from beartype import beartype


def checked(function):
    """beartype, for the annotations that are arrays with named dimensions."""
    hints = function.__annotations__
    function.__annotations__ = {
        name: hint if "ndarray" in str(hint) else Any for name, hint in hints.items()
    }
    return beartype(function)

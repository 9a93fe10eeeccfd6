"""The `patchdemux` command, also as `python -m patchdemux`."""

import sys


def main() -> None:
    """Run the command line, or say what to install for it."""
    try:
        from patchdemux import cli
    except ModuleNotFoundError as error:
        sys.exit(
            f"error: the command line needs {error.name}: pip install 'patchdemux[cli]' "
            f"(or 'patchdemux[demo]' for the demo too)"
        )
    cli.main()


if __name__ == "__main__":
    main()

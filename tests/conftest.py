"""Shapes in signatures are checked at run time, in the tests only."""

from pathlib import Path

from hypothesis import settings
from jaxtyping import install_import_hook

# `ScoreBounds` and `MaskSet` check the arrays they are given themselves, with texts that tests read.
INSIDE = ["certify", "metrics", "engine", "defenses", "report"]
install_import_hook([f"patchdemux.{room}" for room in INSIDE], "typecheck.checked")

GOLDEN = Path(__file__).parent / "golden"
"""Figures of the published implementation, on data generated for the purpose."""

settings.register_profile("default", deadline=None)
settings.load_profile("default")

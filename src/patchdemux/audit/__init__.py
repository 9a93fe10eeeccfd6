"""Audits: attempts to falsify a run."""

from patchdemux.audit.audit import Audit, audit
from patchdemux.audit.finding import Finding

__all__ = ["Audit", "Finding", "audit"]

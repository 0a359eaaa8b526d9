"""Checks the tested environment against the list of known vulnerabilities (pip-audit, the advisories of PyPI).

python tools/audit.py      0: none known · 1: some are · 2: the list could not be reached, nothing was checked
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def verdict(report: str) -> tuple[int, list[str]]:
    """The status for what pip-audit reports as JSON, and what to say."""
    try:
        packages = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        packages = []
    checked = [package for package in packages if "vulns" in package]
    if not checked:
        return 2, ["the list of known vulnerabilities cannot be reached: nothing was checked"]
    known = [
        f"{package['name']} {package['version']}: {weakness['id']}"
        for package in checked
        for weakness in package["vulns"]
    ]
    said = (
        f"{len(checked)} of {len(packages)} packages were looked up, {len(known)} vulnerabilities are known"
    )
    return (1 if known else 0), [*known, said]


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(ROOT / "requirements.lock")]
    command += ["--disable-pip", "--no-deps", "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    status, lines = verdict(done.stdout)
    print("\n".join(f"audit: {line}" for line in lines), file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())

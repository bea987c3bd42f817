"""pip-audit for indexes that answer for a project and not for each of its releases.

`.venv-fuzz/bin/python tests/exporter/audit.py ARGUMENTS OF pip-audit`. What PyPI says of a project
holds for its newest release, which a fresh installation gets. Of any other release nothing is known
then, and `--strict` fails. An index that tells of no vulnerability at all is found out beforehand.
"""

from __future__ import annotations

import sys
from typing import Any

from packaging.version import Version
from pip_audit._cli import audit
from pip_audit._service import ResolvedDependency, pypi

#: Abandoned, with vulnerabilities that nobody will ever fix.
_VULNERABLE = ResolvedDependency("pycrypto", Version("2.6.1"))


class Session:
    """Asks for the project where the index does not know a release by itself."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def get(self, url: str, timeout: int | None) -> Any:
        """The answer about the release, or about the project if that is its newest release."""
        answer = self._session.get(url=url, timeout=timeout)
        if answer.status_code != 404:
            return answer
        project, version, _ = url.rsplit("/", 2)
        newest = self._session.get(url=f"{project}/json", timeout=timeout)
        known = newest.ok and Version(newest.json()["info"]["version"]) == Version(version)
        return newest if known else answer


def main() -> None:
    """Run pip-audit's own command line."""
    real = pypi.caching_session
    pypi.caching_session = lambda cache_dir: Session(real(cache_dir))
    _, found = pypi.PyPIService().query(_VULNERABLE)
    if not found:
        sys.exit("nothing was audited: the index tells of no vulnerability, not even of known ones")
    audit()


if __name__ == "__main__":
    main()

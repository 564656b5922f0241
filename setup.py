"""Everything is in pyproject.toml but this: a built package notes its commit, for an installed copy has no repository to ask."""

import json
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildPy(build_py):
    """Copies the packages, and writes fedmf/commit.json beside them where the sources are a checkout."""

    def run(self) -> None:
        """Build, not for an editable installation, which stays a checkout."""
        super().run()
        if self.editable_mode or not Path(".git").exists():
            return
        commit, changes = (
            subprocess.run(["git", *asked], capture_output=True, text=True, check=False)
            for asked in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
        if not commit.returncode and not changes.returncode:
            noted = {"git_commit": commit.stdout.strip(), "git_modified": bool(changes.stdout)}
            (Path(self.build_lib) / "fedmf" / "commit.json").write_text(json.dumps(noted))


setup(cmdclass={"build_py": BuildPy})

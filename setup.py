"""Everything is in pyproject.toml but this: what is built notes its commit, for an installed copy has no repository to ask."""

import json
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist


def note_commit(package: Path) -> None:
    """Write commit.json into `package` where the sources are a checkout; an unpacked sdist has it already."""
    if not Path(".git").exists():
        return
    commit, changes = (
        subprocess.run(["git", *asked], capture_output=True, text=True, check=False)
        for asked in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
    )
    if not commit.returncode and not changes.returncode:
        noted = {"git_commit": commit.stdout.strip(), "git_modified": bool(changes.stdout)}
        (package / "commit.json").write_text(json.dumps(noted))


class BuildPy(build_py):
    """Copies the packages; an editable installation stays a checkout."""

    def run(self) -> None:
        """Build, and note the commit."""
        super().run()
        if not self.editable_mode:
            note_commit(Path(self.build_lib) / "fedmf")


class Sdist(sdist):
    """Packs the sources."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy them, and note the commit."""
        super().make_release_tree(base_dir, files)
        note_commit(Path(base_dir) / "fedmf")


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})

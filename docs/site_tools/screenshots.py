"""Take the screenshots of the README: `PYTHONPATH=. python docs/site_tools/screenshots.py`.

It trains the runs that they show, on digits in a few minutes, and opens their pages in the Chromium that CHROMIUM names or
that is on PATH. Writes docs/assets/report.png and docs/assets/comparison.png, light, each below 150 kB.
"""

import io
import os
import shutil
import tempfile
from itertools import product
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from experiments import run
from experiments.compare import CompareSettings, compare
from experiments.settings.compose import compose

ASSETS = Path(__file__).resolve().parents[1] / "assets"
MOST_BYTES = 150_000
COLOURS = 256  # of the picture's palette: the pages have few, and letters stay smooth


def main() -> None:
    """Train, open, take and write."""
    with tempfile.TemporaryDirectory() as folder:
        digits = run("population.epochs=8", f"run.directory={folder}/digits", seed=1)
        sweep = Path(folder) / "mechanisms"
        for mechanism, epsilon, seed in product(
            ("optimal", "independent", "binary_tree"), (2, 8, 32), (1, 2, 3)
        ):
            chosen = (f"mechanism={mechanism}", f"privacy.epsilon={epsilon}", "population.epochs=4")
            run(*chosen, f"run.directory={sweep}/{mechanism}-{epsilon}-{seed}", seed=seed)
        compare(compose("compare", [f"directory={sweep}", "output=json"], CompareSettings))
        take(digits.directory / "report.html", ASSETS / "report.png", height=735)
        take(sweep / "compare.html", ASSETS / "comparison.png", height=1265)


def take(page: Path, file: Path, *, height: int) -> None:
    """Write what a window of 1280 pixels shows of a page."""
    program = shutil.which(os.environ.get("CHROMIUM") or "chromium")
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []  # it refuses root otherwise
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=flags)
        opened = browser.new_page(viewport={"width": 1280, "height": height}, color_scheme="light")
        opened.goto(page.as_uri())
        picture = Image.open(io.BytesIO(opened.screenshot()))
        browser.close()
    small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(file, optimize=True)
    size = file.stat().st_size
    assert size < MOST_BYTES, f"{file} has {size} bytes; it must have less than {MOST_BYTES}."
    print(f"{file}: {size:,} bytes")


if __name__ == "__main__":
    main()

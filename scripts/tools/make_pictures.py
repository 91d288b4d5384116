"""Draw the pictures of README and the guides again, into dsearch/guide.

    python scripts/tools/make_pictures.py           those that the code of a guide draws
    python scripts/tools/make_pictures.py HOME      photographs of the page too, by Chromium

HOME is what `scripts/demo --no-serve` leaves (`index`); a copy of it is served.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "dsearch" / "guide"
PORT = 18431
SIZE: Any = {"width": 900, "height": 640}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")
COLOURS = 64  # of a palette: a tenth of the bytes, and nobody sees it


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("home", nargs="?", type=Path, help="with a collection `python`, as the demo makes it")
    home = asked.parse_args().home
    with tempfile.TemporaryDirectory() as folder:
        draw_guides(Path(folder))
        if home is not None:
            shutil.copytree(home, Path(folder) / "home")
            with served(Path(folder) / "home"), browser() as page:
                photograph(page)


def draw_guides(folder: Path) -> None:
    """Run the guides that show pictures which their own code draws."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.guide.blocks import pictures_of, run_blocks  # pyright: ignore[reportMissingImports]

    for path in sorted(GUIDE.glob("*.md")):
        drawn = pictures_of(path)
        if not drawn:
            continue
        place = folder / path.stem
        place.mkdir()
        os.environ["DSEARCH_HOME"] = str(place / "index")
        run_blocks(path, place)
        for name in drawn:
            keep(name, (place / name).read_bytes())


def photograph(page: Any) -> None:
    """A view each, as somebody sees it who has just done something there."""
    page.goto("/#c=python&q=remember+the+results+of+an+expensive+function")
    page.locator(".hit").nth(2).wait_for()
    keep("page.png", page.screenshot())

    page.goto("/#c=python&v=attend&q=")
    page.get_by_label("Pooling").first.select_option("soft")
    page.locator(".prediction").first.wait_for()
    page.get_by_role("heading", name="On python").wait_for()
    keep("page-attend.png", page.screenshot())

    page.goto("/#c=python&v=train")
    page.set_viewport_size({**SIZE, "height": 1200})
    page.get_by_role("button", name="Train from the documents alone").click()
    page.get_by_text("held-out queries, nDCG@10").first.wait_for(timeout=3_600_000)
    result = page.locator("section", has=page.get_by_role("button", name="Train from the documents alone"))
    keep("page-train.png", result.screenshot())
    page.set_viewport_size(SIZE)

    page.goto("/#c=python&v=compare&a=v0+hybrid&b=v0+dense&q=remember+the+results+of+an+expensive+function")
    page.reload()
    page.locator(".columns section").nth(1).wait_for()
    keep("page-compare.png", page.screenshot())


def keep(name: str, png: bytes) -> None:
    """Write a picture with a palette, and no larger than it has to be."""
    from PIL import Image

    reduced = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS)
    reduced.save(GUIDE / name, optimize=True)
    print(f"{name}: {(GUIDE / name).stat().st_size / 1000:.0f} kB")


@contextlib.contextmanager
def served(home: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "dsearch", "serve", "--home", str(home), "--port", str(PORT)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 300
        while time.monotonic() < until:
            if server.poll() is not None:
                raise SystemExit(f"dsearch serve ended with {server.returncode}")
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{PORT}/readyz"):
                break
            time.sleep(0.5)
        yield
    finally:
        server.terminate()
        server.wait(60)


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = launched.new_page(base_url=f"http://127.0.0.1:{PORT}", viewport=SIZE, color_scheme="light")
        page.set_default_timeout(120_000)
        yield page
        launched.close()


if __name__ == "__main__":
    main()

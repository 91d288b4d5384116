"""Every code block of the guides and of README does what the text around it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from blocks import blocks_of, run_blocks

import dsearch

# attention.md is run by tests/attention, which stands for itself.
GUIDES = sorted(
    path for path in (Path(dsearch.__file__).parent / "guide").glob("*.md") if path.stem != "attention"
)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("path", GUIDES, ids=[path.stem for path in GUIDES])
def test_every_block_of_a_guide_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not blocks_of(path):
        pytest.skip("nothing to run")
    monkeypatch.setenv("DSEARCH_HOME", str(tmp_path / "index"))
    assert run_blocks(path, tmp_path) > 0


def test_a_block_that_fails_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```sh\nexit 3\n```\n")
    with pytest.raises(AssertionError, match="exit code 3"):
        run_blocks(page, tmp_path)
    page.write_text("# A page\n\n```python\nassert False\n```\n")
    with pytest.raises(AssertionError):
        run_blocks(page, tmp_path)

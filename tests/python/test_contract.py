"""docs/contract.md: the tests that it names exist, and a row that is proved names some."""
import re

from capi import ROOT

NAMED = re.findall(r"`(test_\w+)(\.c)?::(\w+)`", (ROOT / "docs" / "contract.md").read_text())


def test_every_test_named_exists():
    assert NAMED
    for file, c, name in NAMED:
        path = ROOT / "tests" / ("c" if c else "python") / f"{file}{c or '.py'}"
        assert path.exists(), path
        assert re.search(rf"^TEST\({name}\)" if c else rf"^def {name}\(", path.read_text(), re.M), f"{file}{c}::{name}"


def test_a_state_is_one_of_three():
    rows = [line.split(" | ") for line in (ROOT / "docs" / "contract.md").read_text().splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row[0] != "| row"]
    assert len(rows) > 50
    for row in rows:
        assert len(row) == 3 and row[1] in ("yes", "part", "later"), row
        assert row[1] != "yes" or "`" in row[2], row

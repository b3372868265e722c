"""Every kind of alarm that code raises is explained to operators."""

import re

from tests.architecture.repository import ROOT, modules

NAMED = re.compile(
    r"^[A-Z_]+ = \"([a-z]+(?:_[a-z]+)+)\"\n\"\"\"Alarm|raise_alarm\(\s*(?:session,\s*)?\"([\w-]+)\"",
    re.MULTILINE,
)


def test_every_kind_is_in_the_operations_guide() -> None:
    sources = [path.read_text() for path in modules("gateway", "feedback", "trainer", "evaluator", "ratchet")]
    kinds = {first or second for text in sources for first, second in NAMED.findall(text)}
    guide = (ROOT / "docs" / "operations.md").read_text()
    assert len(kinds) >= 3
    assert [kind for kind in sorted(kinds) if f"`{kind}`" not in guide] == []

"""Which language, and whether an answer was cut off."""

import subprocess
import sys

import pytest

from ratchet.labels.answer import labels_of
from ratchet.labels.language import language
from ratchet.labels.truncation import truncated


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("The committee will meet on Tuesday to discuss the budget for next year.", "en"),
        ("Der Ausschuss trifft sich am Dienstag, um den Haushalt zu besprechen.", "de"),
        ("Le comité se réunit mardi pour discuter du budget de l'année prochaine.", "fr"),
        ("El comité se reúne el martes para discutir el presupuesto.", "es"),
        ("委员会将于星期二开会讨论明年的预算。", "zh"),
        ("ok", None),
        ("", None),
        ("12345 67890 11111 22222 33333", None),
        ("```python\nfor item in collection_of_items: print(item)\n```", None),
    ],
)  # fmt: skip
def test_language(text: str, code: str | None) -> None:
    assert language(text) == code


def test_the_language_model_is_read_on_the_first_call_only() -> None:
    program = "import sys, ratchet.labels.answer; print('py3langid' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("text", "reason", "cut"),
    [
        ("All of it.", "length", True),
        ("and then the", "stop", False),
        ("", "stop", False),
        ("", None, None),
        ("The answer is 4.", None, False),
        ("She walked along the shore until the light of the tower was no more than a", None, True),
        ("```python\nprint(1)", None, True),
        ("```python\nprint(1)\n```", None, False),
        ("- a point of a list that has no full stop at its end", None, None),
        ("Paris", None, None),
    ],
)
def test_truncation(text: str, reason: str | None, cut: bool | None) -> None:
    assert truncated(text, reason) is cut


def test_all_labels_of_an_answer() -> None:
    assert labels_of("I'm sorry, but I can't assist with that.", "stop") == {
        "refusal": "full", "repetition": None, "truncated": False, "language": "en",
    }  # fmt: skip


def test_a_refusal_in_another_language_is_not_judged() -> None:
    text = "Es tut mir leid, aber dabei kann ich Ihnen leider nicht helfen."
    assert labels_of(text, "stop")["refusal"] is None

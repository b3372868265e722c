"""Personal data is masked, ordinary numbers are not, and no engine is loaded for it."""

import subprocess
import sys

import pytest

from feedback.privacy import Masker
from feedback.rows import hash_of_prompt
from tests.unit.feedback.builders import demonstration_row, pair_row


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Write to ann.b@example.org.", "Write to <EMAIL_ADDRESS>."),
        ("call +49 30 901820 now", "call <PHONE_NUMBER> now"),
        ("(212) 555-0123", "<PHONE_NUMBER>"),
        ("4111 1111 1111 1111", "<CREDIT_CARD>"),
        ("DE89370400440532013000", "<IBAN_CODE>"),
        ("at 192.168.1.10", "at <IP_ADDRESS>"),
        ("536-90-4399", "<US_SSN>"),
        ("a@example.org, b@example.org", "<EMAIL_ADDRESS>, <EMAIL_ADDRESS>"),
        ("In 2024, 1234567 people; version 3.11.7; x@y; 4111 1111 1111 1112", None),
        ("Newton met Ada in Paris on 2024-11-30.", None),
        ("", None),
    ],
)
def test_what_is_masked(text: str, expected: str | None):
    masker = Masker()
    once = masker.text(text)
    assert once == (text if expected is None else expected)
    assert masker.text(once) == once
    assert sum(masker.found.values()) == (0 if expected is None else expected.count("<"))


def test_a_masked_row_is_known_by_its_masked_prompt():
    row = pair_row(asked="Who is ann@example.org?", chosen="ann@example.org", rejected="+49 30 901820")
    masked = Masker().row(row)
    assert (masked.chosen, masked.rejected) == ("<EMAIL_ADDRESS>", "<PHONE_NUMBER>")
    assert masked.prompt[-1].content == "Who is <EMAIL_ADDRESS>?"
    assert masked.prompt_hash == hash_of_prompt(masked.prompt) != row.prompt_hash
    answers = Masker().answers(row)
    assert (answers.prompt, answers.prompt_hash) == (row.prompt, row.prompt_hash)
    assert answers.chosen == "<EMAIL_ADDRESS>"
    written = demonstration_row(completion="ann@example.org")
    assert Masker().row(written).completion == "<EMAIL_ADDRESS>"


def test_masking_loads_no_engine_and_asks_no_network():
    program = (
        "import socket, sys\n"
        "def refuse(*_): raise AssertionError('network')\n"
        "socket.getaddrinfo = refuse\n"
        "from feedback.privacy import Masker\n"
        "assert Masker().text('ann@example.co.uk') == '<EMAIL_ADDRESS>'\n"
        "assert not {'torch', 'transformers', 'vllm'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

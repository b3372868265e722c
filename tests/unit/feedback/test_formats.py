"""File formats: documents by hand, errors that name file and line, and round trips for any row."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedback.formats import Format, FormatError, Skipped, Written, read, write
from feedback.rows import DemonstrationRow, DropReason, Kind, PreferenceRow, Row, Turn, hash_of_prompt
from feedback.sorting import digest_of_rows
from ratchet.errors import UsageError
from tests.unit.feedback.builders import (
    NOON,
    demonstration_row,
    demonstration_rows,
    pair_row,
    preference_rows,
    prompt,
    question,
    texts,
)

SKY = "What colour is the sky?"
BLUE, BLACK = "The sky is blue.", "The sky is black."


def sky(**fields: object) -> PreferenceRow:
    return pair_row(asked=SKY, chosen=BLUE, rejected=BLACK, **fields)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def put(path: Path, *documents: object) -> Path:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents), "utf-8")
    return path


def all_rows(path: Path, format: Format, kind: Kind = Kind.PAIRS, name: str = "file") -> list[Row | Skipped]:
    return list(read(path, format, kind, name=name))


def imported(
    asked: str = SKY, chosen: str = BLUE, rejected: str = BLACK, name: str = "file"
) -> PreferenceRow:
    turns = prompt(asked)
    return PreferenceRow(
        turns, chosen, rejected, None, None, f"import:{name}", f"import:{name}", None, None,
        "import", 0, 1.0, None, hash_of_prompt(turns),
    )  # fmt: skip


PROVENANCE = {
    "chosen_response_id": "c0",
    "rejected_response_id": "r0",
    "chosen_policy": "demo@2",
    "rejected_policy": "demo@1",
    "chosen_decode": "d2",
    "rejected_decode": "d1",
    "source": "comparison",
    "votes": 3,
    "weight": 1.0,
    "created_at": "2026-03-01T12:00:00.000000Z",
    "prompt_hash": hash_of_prompt(prompt(SKY)),
}


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


ASKED = [{"role": "user", "content": SKY}]


@pytest.mark.parametrize(
    ("format", "bare", "with_provenance"),
    [
        (
            Format.TRL,
            {"prompt": ASKED, "chosen": said(BLUE), "rejected": said(BLACK)},
            {"prompt": ASKED, "chosen": said(BLUE), "rejected": said(BLACK), **PROVENANCE},
        ),
        (
            Format.OPENAI,
            {
                "input": {"messages": ASKED, "tools": [], "parallel_tool_calls": True},
                "preferred_output": said(BLUE),
                "non_preferred_output": said(BLACK),
            },
            {
                "input": {"messages": ASKED, "tools": [], "parallel_tool_calls": True},
                "preferred_output": said(BLUE),
                "non_preferred_output": said(BLACK),
                "ratchet": PROVENANCE,
            },
        ),
        (
            Format.HH,
            {
                "chosen": f"\n\nHuman: {SKY}\n\nAssistant: {BLUE}",
                "rejected": f"\n\nHuman: {SKY}\n\nAssistant: {BLACK}",
            },
            {
                "chosen": f"\n\nHuman: {SKY}\n\nAssistant: {BLUE}",
                "rejected": f"\n\nHuman: {SKY}\n\nAssistant: {BLACK}",
                "ratchet": PROVENANCE,
            },
        ),
    ],
)
def test_a_pair_as_each_format_has_it(tmp_path: Path, format: Format, bare: object, with_provenance: object):
    path = tmp_path / "pairs.jsonl"
    assert write(path, format, Kind.PAIRS, [sky()], provenance=False) == Written(1, {})
    assert lines_of(path) == [bare]
    assert all_rows(path, format) == [imported()]
    write(path, format, Kind.PAIRS, [sky()])
    assert lines_of(path) == [with_provenance]
    assert all_rows(path, format) == [sky()]


def test_the_exported_prompt_is_not_cut_into_the_common_beginning(tmp_path: Path):
    path = tmp_path / "pairs.jsonl"
    write(path, Format.TRL, Kind.PAIRS, [sky()])
    (line,) = lines_of(path)
    assert line["prompt"] == ASKED
    assert (line["chosen"][0]["content"], line["rejected"][0]["content"]) == (BLUE, BLACK)
    implicit = put(tmp_path / "implicit.jsonl", {"chosen": BLUE, "rejected": BLACK})
    with pytest.raises(FormatError, match=r"implicit\.jsonl, line 1: prompt: it is missing"):
        all_rows(implicit, Format.TRL)


def test_a_demonstration_as_each_format_has_it(tmp_path: Path):
    turns = (Turn("user", SKY), Turn("assistant", "Black."), Turn("user", "Sure?"))
    row = demonstration_row(prompt=turns, prompt_hash=hash_of_prompt(turns))
    path = tmp_path / "sft.jsonl"
    write(path, Format.OPENAI, Kind.DEMONSTRATIONS, [row], provenance=False)
    (line,) = lines_of(path)
    assert line == {
        "messages": [
            {"role": "user", "content": SKY},
            {"role": "assistant", "content": "Black.", "weight": 0},
            {"role": "user", "content": "Sure?"},
            {"role": "assistant", "content": "written 0"},
        ]
    }
    write(path, Format.TRL, Kind.DEMONSTRATIONS, [row])
    (line,) = lines_of(path)
    assert line["completion"] == said("written 0")
    assert line["policy"] == "human:edit"
    put(path, {"messages": [*ASKED, *said(BLUE)]})
    (got,) = all_rows(path, Format.TRL, Kind.DEMONSTRATIONS)
    assert isinstance(got, DemonstrationRow)
    assert (got.prompt, got.completion, got.policy) == (prompt(SKY), BLUE, "import:file")


def test_hh_has_no_demonstrations_and_a_name_is_a_word(tmp_path: Path):
    with pytest.raises(UsageError, match="hh knows no demonstrations"):
        read(tmp_path / "x", Format.HH, Kind.DEMONSTRATIONS, name="x")
    with pytest.raises(UsageError, match="hh knows no demonstrations"):
        write(tmp_path / "x", Format.HH, Kind.DEMONSTRATIONS, [])
    with pytest.raises(UsageError, match="'a b' cannot name an import"):
        read(tmp_path / "x", Format.HH, Kind.PAIRS, name="a b")


FIVE_TURNS = "\n\nHuman: 1\n\nAssistant: 2\n\nHuman: 3\n\nAssistant: 4\n\nHuman: 5\n\nAssistant: {}"


def test_a_transcript_splits_at_the_last_assistant_turn(tmp_path: Path):
    path = put(
        tmp_path / "hh.jsonl", {"chosen": FIVE_TURNS.format("6"), "rejected": FIVE_TURNS.format(" 7\n")}
    )
    (got,) = all_rows(path, Format.HH)
    assert isinstance(got, PreferenceRow)
    assert [turn.content for turn in got.prompt] == ["1", "2", "3", "4", "5"]
    assert [turn.role for turn in got.prompt] == ["user", "assistant", "user", "assistant", "user"]
    assert (got.chosen, got.rejected) == ("6", " 7\n")
    again = tmp_path / "again.jsonl"
    write(again, Format.HH, Kind.PAIRS, [got], provenance=False)
    assert lines_of(again) == lines_of(path)


def test_transcripts_of_two_prompts_are_no_pair(tmp_path: Path):
    other = "\n\nHuman: hi\n\nAssistant: 7"
    path = put(tmp_path / "hh.jsonl", {"chosen": FIVE_TURNS.format("6"), "rejected": other})
    assert all_rows(path, Format.HH) == [Skipped(1, DropReason.DIFFERENT_PROMPTS)]


@pytest.mark.parametrize(
    ("transcript", "expected"),
    [
        ("Human: hi\n\nAssistant: a", "chosen: a transcript begins with an empty line"),
        ("", "chosen: a transcript begins with an empty line"),
        ("\n\nHuman: hi\n\nAssistant: a\n\nHuman: b", "chosen: the last turn is the human's"),
        ("\n\nAssistant: a", "chosen: there is an answer but no prompt"),
    ],
)
def test_transcripts_that_are_none(tmp_path: Path, transcript: str, expected: str):
    path = put(tmp_path / "hh.jsonl", {"chosen": transcript, "rejected": FIVE_TURNS.format("x")})
    with pytest.raises(FormatError, match=expected):
        all_rows(path, Format.HH)


def test_what_a_transcript_cannot_hold_is_left_out_and_counted(tmp_path: Path):
    system = (Turn("system", "Be brief."), Turn("user", SKY))
    rows = [
        sky(),
        sky(prompt=system, prompt_hash=hash_of_prompt(system)),
        pair_row(chosen="a\n\nHuman: b"),
    ]
    path = tmp_path / "hh.jsonl"
    assert write(path, Format.HH, Kind.PAIRS, rows) == Written(1, {"unsupported": 2})
    assert len(lines_of(path)) == 1


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"prompt": SKY, "chosen": BLUE, "rejected": BLUE + "\n"}, DropReason.IDENTICAL),
        ({"prompt": SKY, "chosen": BLUE, "rejected": " "}, DropReason.EMPTY),
        (
            {"prompt": SKY, "chosen": BLUE, "rejected": BLACK, "tools": [{"type": "function"}]},
            DropReason.UNSUPPORTED,
        ),
        (
            {"chosen": [*ASKED, *said(BLUE)], "rejected": [{"role": "user", "content": "?"}, *said(BLACK)]},
            DropReason.DIFFERENT_PROMPTS,
        ),
        (
            {
                "prompt": [{"role": "tool", "content": "4", "tool_call_id": "1"}],
                "chosen": BLUE,
                "rejected": BLACK,
            },
            DropReason.UNSUPPORTED,
        ),
        (
            {
                "prompt": [{"role": "user", "content": [{"type": "image_url"}]}],
                "chosen": BLUE,
                "rejected": BLACK,
            },
            DropReason.UNSUPPORTED,
        ),
        (
            {"prompt": SKY, "chosen": [*said("I look."), *said(BLUE)], "rejected": BLACK},
            DropReason.UNSUPPORTED,
        ),
        (
            {
                "prompt": SKY,
                "chosen": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}],
                "rejected": BLACK,
            },
            DropReason.UNSUPPORTED,
        ),
    ],
)
def test_lines_that_can_be_no_row_are_passed_over(tmp_path: Path, document: object, expected: DropReason):
    path = put(tmp_path / "trl.jsonl", {"prompt": "x", "chosen": "y", "rejected": "z"}, document)
    assert all_rows(path, Format.TRL)[1] == Skipped(2, expected)


@pytest.mark.parametrize(
    "document",
    [
        {"prompt": SKY, "chosen": BLUE, "rejected": BLACK},
        {"prompt": ASKED, "chosen": said(BLUE), "rejected": said(BLACK)},
        {"chosen": [*ASKED, *said(BLUE)], "rejected": [*ASKED, *said(BLACK)]},
        {
            "prompt": [{"role": "user", "content": [{"type": "text", "text": SKY}]}],
            "chosen": BLUE,
            "rejected": BLACK,
        },
        {"prompt": SKY, "chosen": BLUE, "rejected": BLACK, "source": "elsewhere", "votes": "many"},
    ],
)
def test_trl_in_all_its_forms(tmp_path: Path, document: object):
    assert all_rows(put(tmp_path / "trl.jsonl", document), Format.TRL) == [imported()]


PAIR = {"prompt": SKY, "chosen": "1", "rejected": "2"}


def test_a_text_of_one_digit_stays_text(tmp_path: Path):
    path = put(tmp_path / "trl.jsonl", PAIR)
    (got,) = all_rows(path, Format.TRL)
    assert got == imported(chosen="1", rejected="2")
    again = tmp_path / "pairs.parquet"
    write(again, Format.PARQUET, Kind.PAIRS, [got])
    assert all_rows(again, Format.PARQUET) == [got]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({**PAIR, "chosen": 1}, r"chosen: Input should be a valid string \(it is 1\)"),
        ({"prompt": SKY, "chosen": "1"}, "rejected: Field required"),
        ({**PAIR, "chosen": [{"role": "human", "content": "1"}]}, "chosen"),
        ({**PAIR, "chosen": ASKED}, "chosen: its last message must be the assistant's"),
        ({**PAIR, "chosen": []}, "chosen: its last message must be the assistant's"),
        ({**PAIR, "prompt": []}, "prompt: it has no message"),
        ([PAIR], "an object is expected, not list"),
        ({**PAIR, "prompt_hash": "0" * 64}, "Field required"),
        ({**PAIR, **PROVENANCE, "prompt_hash": "0" * 64}, "prompt_hash: it is 000000"),
        ({**PAIR, **PROVENANCE, "votes": "3"}, r"votes: Input should be a valid integer \(it is '3'\)"),
        ({**PAIR, **PROVENANCE, "votes": True}, "votes: Input should be a valid integer"),
        ({**PAIR, **PROVENANCE, "weight": 0}, "weight: Input should be greater than 0"),
        ({**PAIR, **PROVENANCE, "source": "hearsay"}, "source: 'hearsay' is none of comparison, edit"),
        (
            {**PAIR, **PROVENANCE, "created_at": "2026-03-01T12:00:00"},
            "created_at: Input should have timezone",
        ),
        ({**PAIR, **PROVENANCE, "created_at": "noon"}, "created_at: Value error, Invalid isoformat"),
    ],
)
def test_errors_name_file_line_and_field(tmp_path: Path, document: object, expected: str):
    path = put(tmp_path / "trl.jsonl", PAIR, document)
    with pytest.raises(FormatError, match=r"trl\.jsonl, line 2: .*" + expected):
        all_rows(path, Format.TRL)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"prompt": "a"', "no JSON"),
        (b'{"prompt": NaN}', "no JSON"),
        (b'{"prompt": "\\ud800", "chosen": "1", "rejected": "2"}', "no JSON"),
        (b'{"prompt": "\xff", "chosen": "1", "rejected": "2"}', "no JSON"),
    ],
)
def test_lines_that_are_no_json(tmp_path: Path, line: bytes, expected: str):
    path = tmp_path / "trl.jsonl"
    path.write_bytes(b"\n\n" + line + b"\n")
    with pytest.raises(FormatError, match=r"trl\.jsonl, line 3: " + expected) as caught:
        all_rows(path, Format.TRL)
    assert (caught.value.path, caught.value.line) == (path, 3)


def test_bom_blank_lines_gzip_and_nul(tmp_path: Path):
    path = tmp_path / "trl.jsonl.gz"
    document = json.dumps({**PAIR, "chosen": "a\x00b"}).encode()
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + document + b"\r\n\r\n"))
    assert all_rows(path, Format.TRL) == [imported(chosen="a\ufffdb", rejected="2")]
    write(path, Format.TRL, Kind.PAIRS, [sky()])
    assert gzip.decompress(path.read_bytes()).startswith(b'{"prompt":[{"role":"user"')
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(FormatError, match="cannot be read"):
        all_rows(path, Format.TRL)
    with pytest.raises(FormatError, match=r"gone\.jsonl: cannot be read: .*No such file"):
        all_rows(tmp_path / "gone.jsonl", Format.TRL)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            {"input": {"messages": ASKED}, "preferred_output": said(BLUE)},
            "non_preferred_output: Field required",
        ),
        (
            {
                "input": {"messages": [{"role": "user", "content": 4}]},
                "preferred_output": [],
                "non_preferred_output": [],
            },
            "input.messages.0.content: Input should be a valid string",
        ),
    ],
)
def test_openai_errors(tmp_path: Path, document: object, expected: str):
    with pytest.raises(FormatError, match=f"line 1: {expected}"):
        all_rows(put(tmp_path / "openai.jsonl", document), Format.OPENAI)


def test_openai_tools_and_weights(tmp_path: Path):
    tools = {
        "input": {"messages": ASKED, "tools": [{}]},
        "preferred_output": said(BLUE),
        "non_preferred_output": said(BLACK),
    }
    assert all_rows(put(tmp_path / "o.jsonl", tools), Format.OPENAI) == [Skipped(1, DropReason.UNSUPPORTED)]
    unlearned = {"messages": [*ASKED, {**said(BLUE)[0], "weight": 0}]}
    with pytest.raises(FormatError, match="the last has weight 0"):
        all_rows(put(tmp_path / "o.jsonl", unlearned), Format.OPENAI, Kind.DEMONSTRATIONS)
    with pytest.raises(FormatError, match="it has no message"):
        all_rows(put(tmp_path / "o.jsonl", {"messages": []}), Format.OPENAI, Kind.DEMONSTRATIONS)


def test_parquet_with_trl_columns_and_with_wrong_ones(tmp_path: Path):
    path = tmp_path / "trl.parquet"
    pq.write_table(pa.table({"prompt": [SKY], "chosen": [BLUE], "rejected": [BLACK]}), path)
    assert all_rows(path, Format.PARQUET) == [imported()]
    pq.write_table(pa.table({"prompt": [SKY, SKY], "chosen": [1, 2], "rejected": [BLACK, BLACK]}), path)
    with pytest.raises(FormatError, match=r"trl\.parquet, line 1: chosen: Input should be a valid string"):
        all_rows(path, Format.PARQUET)
    path.write_bytes(b"PAR1")
    with pytest.raises(FormatError, match="cannot be read as Parquet"):
        all_rows(path, Format.PARQUET)


def test_a_failed_export_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("old")

    def failing():
        yield sky()
        raise RuntimeError("torn")

    for format in (Format.TRL, Format.PARQUET):
        with pytest.raises(RuntimeError, match="torn"):
            write(path, format, Kind.PAIRS, failing())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def round_trip(rows: Sequence[Row], format: Format, kind: Kind, *, provenance: bool) -> list[Row | Skipped]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        write(path, format, kind, rows, provenance=provenance)
        return all_rows(path, format, kind)


@settings(max_examples=40, deadline=None)
@given(st.lists(preference_rows, max_size=4), st.sampled_from(Format))
def test_pairs_come_back_as_they_went(rows: list[PreferenceRow], format: Format):
    got = round_trip(rows, format, Kind.PAIRS, provenance=True)
    if format is Format.HH:
        assert [row for row in rows if row in got] == got
    else:
        assert got == rows
        assert digest_of_rows(Kind.PAIRS, rows) == digest_of_rows(Kind.PAIRS, got)


@settings(max_examples=30, deadline=None)
@given(st.lists(demonstration_rows, max_size=4), st.sampled_from([Format.TRL, Format.OPENAI, Format.PARQUET]))
def test_demonstrations_come_back_as_they_went(rows: list[DemonstrationRow], format: Format):
    assert round_trip(rows, format, Kind.DEMONSTRATIONS, provenance=True) == rows


@settings(max_examples=30, deadline=None)
@given(st.lists(preference_rows, max_size=4), st.sampled_from([Format.TRL, Format.OPENAI, Format.HH]))
def test_without_provenance_the_second_round_changes_nothing(rows: list[PreferenceRow], format: Format):
    once = round_trip(rows, format, Kind.PAIRS, provenance=False)
    assert round_trip(once, format, Kind.PAIRS, provenance=False) == once


plain_turns = st.lists(
    st.builds(
        Turn,
        st.sampled_from(["user", "assistant"]),
        texts | st.sampled_from(["\n", " \n\nHuman", "\n\nAssistant"]),
    ),
    min_size=1,
    max_size=4,
).map(tuple)


@settings(max_examples=60, deadline=None)
@given(plain_turns, texts, texts)
def test_a_transcript_is_read_as_it_was_written(turns: tuple[Turn, ...], chosen: str, rejected: str):
    row = pair_row(
        prompt=turns, prompt_hash=hash_of_prompt(turns), chosen=f"a{chosen}", rejected=f"b{rejected}"
    )
    assert round_trip([row], Format.HH, Kind.PAIRS, provenance=True) == [row]


@pytest.mark.data
def test_hh_imported_exported_and_imported_again(shared_data: Path, tmp_path: Path):
    source = shared_data / "hh-harmless-base-test.jsonl.gz"
    first = list(read(source, Format.HH, Kind.PAIRS, name="hh"))
    rows = [row for row in first if not isinstance(row, Skipped)]
    assert len(first) == 2_312
    skipped = {one.line: one.reason for one in first if isinstance(one, Skipped)}
    assert skipped == {
        **dict.fromkeys((87, 517, 926, 1104), DropReason.EMPTY),
        **dict.fromkeys((1255, 1689, 1951, 1953, 2037), DropReason.DIFFERENT_PROMPTS),
    }
    digest = digest_of_rows(Kind.PAIRS, rows)
    for format in Format:
        path = tmp_path / f"hh.{format.value}"
        assert write(path, format, Kind.PAIRS, rows, provenance=False) == Written(2_303, {})
        again = [row for row in read(path, format, Kind.PAIRS, name="hh") if not isinstance(row, Skipped)]
        assert digest_of_rows(Kind.PAIRS, again) == digest
    original = [json.loads(line) for line in gzip.decompress(source.read_bytes()).splitlines()]
    exported = lines_of(tmp_path / "hh.hh")
    assert exported == [line for number, line in enumerate(original, 1) if number not in skipped]


def test_the_question_of_the_tests_trains():
    assert imported(question()).created_at is None
    assert sky().created_at == NOON

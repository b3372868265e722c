"""The commands of feedback, as typed, on a real PostgreSQL; HH data there and back."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from feedback.commands.pairs import FileFormat
from feedback.formats import Format
from ratchet.cli import main
from ratchet.db.roles import Role
from ratchet.prompts import hash_of_text
from tests.conftest import Database
from tests.support.feedback import (
    HELDOUT_PROMPT,
    TRAIN_PROMPT,
    put,
    put_comparisons,
    put_event,
    put_policy,
    put_votes,
    response,
)

BLUE, BLACK = "The sky is blue.", "The sky is black."

Run = Callable[..., Any]


@pytest.fixture
def run(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs `ratchet ...`; gives the JSON document, or exit code and standard error."""
    for role in (Role.FEEDBACK, Role.OPERATOR):
        monkeypatch.setenv(f"RATCHET_{role.service.upper()}_DATABASE_URL", database.url(role))
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "home"))

    def typed(*words: str, plain: bool = False) -> Any:
        monkeypatch.setattr("sys.argv", ["ratchet", *words, *(() if plain else ("--json",))])
        try:
            main()
        except SystemExit as end:
            out, errors = capsys.readouterr()
            if end.code:
                return end.code, errors
            return out if plain else json.loads(out)
        raise AssertionError("a command ends with an exit code")

    return typed


def hh(path: Path, *transcripts: tuple[str, str]) -> Path:
    path.write_text("".join(json.dumps({"chosen": a, "rejected": b}) + "\n" for a, b in transcripts))
    return path


def test_formats_are_those_that_can_be_read_and_written() -> None:
    assert [each.value for each in FileFormat] == [each.value for each in Format]


def test_build_export_and_import_again(database: Database, run: Run, tmp_path: Path) -> None:
    [item] = put_comparisons(database.owner_url, 1, a_text=BLUE, b_text=BLACK)
    put_votes(database.owner_url, item, "a", "a")
    built = run("pairs", "build", "--min-votes", "2", "--since", "14d")
    assert built["pairs"] == 1
    assert built["digest"].startswith(built["snapshot"])
    assert Path(built["path"]).name == built["digest"]
    assert built["by_policy"] == {"sea@bbbbbbbbbbbb": 1, "sky@aaaaaaaaaaaa": 1}
    assert built["length_report"]["by_source"]["all"]["pairs"] == 1
    assert run("pairs", "list")[0]["digest"] == built["digest"]
    assert run("pairs", "stats", built["snapshot"])["by_source"] == {"comparison": 1}
    for format in ("trl", "openai", "hh", "parquet"):
        out = tmp_path / f"{format}.data"
        written = run("pairs", "export", built["snapshot"], "--format", format, "--out", str(out))
        assert (written["rows"], written["skipped"], written["masked"]) == (1, {}, {})
    trl = json.loads((tmp_path / "trl.data").read_text())
    assert trl["prompt"] == [{"role": "user", "content": TRAIN_PROMPT}]
    assert trl["chosen"] == [{"role": "assistant", "content": BLUE}]
    assert trl["rejected"] == [{"role": "assistant", "content": BLACK}]
    again = run("pairs", "import", str(tmp_path / "trl.data"), "--format", "trl", "--name", "again")
    assert (again["rows"], again["new"], again["held_out"]) == (1, 1, 0)
    repeated = run("pairs", "import", str(tmp_path / "trl.data"), "--format", "trl", "--name", "again")
    assert (repeated["new"], repeated["repeated"]) == (0, 1)


def test_what_an_export_masks(database: Database, run: Run, tmp_path: Path) -> None:
    [item] = put_comparisons(database.owner_url, 1, a_text="Write to ann@example.org.", b_text=BLACK)
    put_votes(database.owner_url, item, "a")
    digest = run("pairs", "build")["digest"]
    out = tmp_path / "out.jsonl"
    masked = run("pairs", "export", digest, "--format", "trl", "--out", str(out))
    assert masked["masked"] == {"EMAIL_ADDRESS": 1}
    assert "ann@example.org" not in out.read_text()
    run("pairs", "export", digest, "--format", "trl", "--out", str(out), "--no-mask")
    assert "ann@example.org" in out.read_text()


def test_an_import_that_speaks_of_held_out_prompts_is_refused_whole(
    database: Database, run: Run, tmp_path: Path
) -> None:
    asked = "Natalia sold clips to forty eight of her friends in April and then half as many in May"
    with psycopg.connect(database.url(Role.EVALUATOR)) as connection:
        connection.execute(
            "INSERT INTO feedback.heldout_prompt (suite, prompt_hash, text) VALUES ('gsm8k', %s, %s)",
            (hash_of_text(asked), asked),
        )
    path = hh(
        tmp_path / "hh.jsonl",
        (
            f"\n\nHuman: {TRAIN_PROMPT}\n\nAssistant: {BLUE}",
            f"\n\nHuman: {TRAIN_PROMPT}\n\nAssistant: {BLACK}",
        ),
        (f"\n\nHuman: {asked}\n\nAssistant: 72", f"\n\nHuman: {asked}\n\nAssistant: 71"),
        (f"\n\nHuman: Hm: {asked}!\n\nAssistant: 72", f"\n\nHuman: Hm: {asked}!\n\nAssistant: 71"),
    )
    code, errors = run("pairs", "import", str(path), "--format", "hh", "--name", "hh")
    assert code == 2
    assert "2 rows speak of held-out prompts" in errors
    assert "row 2 (prompt) has held-out prompt gsm8k/" in errors
    assert "row 3 (prompt)" in errors
    with psycopg.connect(database.owner_url) as connection:
        assert connection.execute("SELECT count(*) FROM feedback.imported_item").fetchone() == (0,)


def test_imported_rows_on_held_out_prompts_stay_out(database: Database, run: Run, tmp_path: Path) -> None:
    path = hh(
        tmp_path / "hh.jsonl",
        *(
            (f"\n\nHuman: {asked}\n\nAssistant: {BLUE}", f"\n\nHuman: {asked}\n\nAssistant: {BLACK}")
            for asked in (TRAIN_PROMPT, HELDOUT_PROMPT)
        ),
    )
    report = run("pairs", "import", str(path), "--format", "hh", "--name", "hh")
    assert (report["new"], report["held_out"]) == (2, 1)
    built = run("pairs", "build", "--source", "import")
    assert (built["pairs"], built["dropped"]) == (1, {"held_out": 1})
    ledger = run("pairs", "ledger")
    assert (ledger["data"], ledger["used"], ledger["held_out"], ledger["left_out"]) == (2, 1, 1, {})


@pytest.mark.data
def test_the_hh_pairs_there_and_back_have_one_digest(
    database: Database, run: Run, tmp_path: Path, shared_data: Path
) -> None:
    source = shared_data / "hh-harmless-base-test.jsonl.gz"
    report = run("pairs", "import", str(source), "--format", "hh", "--name", "hh")
    assert report["rows"] == 2_312 - sum(report["skipped"].values())
    built = run("pairs", "build")
    out = tmp_path / "out.jsonl.gz"
    written = run("pairs", "export", built["digest"], "--format", "hh", "--out", str(out), "--no-mask")
    assert written["rows"] == built["pairs"]
    again = run("pairs", "import", str(out), "--format", "hh", "--name", "hh")
    assert (again["new"], again["repeated"]) == (0, built["pairs"])
    with psycopg.connect(database.owner_url) as connection:
        connection.execute("DELETE FROM feedback.imported_item")
    assert run("pairs", "import", str(out), "--format", "hh", "--name", "hh")["new"] == built["pairs"]
    assert run("pairs", "build")["digest"] == built["digest"]


def test_wrong_words_end_with_one_line_and_code_2(database: Database, run: Run, tmp_path: Path) -> None:
    wrong = [
        ("pairs", "build", "--policy", "moon"),
        ("pairs", "build", "--since", "yesterday"),
        ("pairs", "build", "--policy-match", "none"),
        ("pairs", "stats", "abc"),
        ("pairs", "stats", "--pool", "both"),
        ("pairs", "export", "abc", "--format", "trl", "--out", str(tmp_path / "x")),
        ("rater", "link", "nobody", "--url", "http://localhost"),
        ("rater", "add", " "),
        ("feedback", "gold", str(tmp_path / "none")),
        ("pairs", "import", str(tmp_path / "none"), "--format", "hh", "--name", "hh"),
    ]
    for words in wrong:
        code, errors = run(*words)
        assert (code, errors.count("\n"), errors[:9]) == (2, 1, "ratchet: "), errors


def test_statistics_of_ratings(database: Database, run: Run) -> None:
    for _ in range(5):
        [item] = put_comparisons(database.owner_url, 1)
        put_votes(database.owner_url, item, "a", "a")
    report = run("pairs", "stats")
    assert (report["comparisons"], report["votes"]) == (5, 10)
    assert report["agreement"]["raw"] == 1.0
    assert report["agreement"]["alpha"] is None
    strengths = report["ranking"]["groups"][0]["strengths"]
    assert "Infinity" not in json.dumps(strengths)


def test_raters_are_added_listed_and_given_links(database: Database, run: Run) -> None:
    assert run("rater", "add", "ann@example.org")["pool"] == "preference"
    assert run("rater", "add", "judge", "--pool", "evaluation", "--daily-quota", "5")["daily_quota"] == 5
    code, errors = run("rater", "add", "ANN@example.org", "--pool", "evaluation")
    assert (code, "a person stays in one pool" in errors) == (2, True)
    made = run("rater", "link", "Ann@Example.org", "--url", "http://host:1/")
    assert made["link"] == f"http://host:1/sign-in/{made['token']}"
    assert datetime.fromisoformat(made["expires_at"]) > datetime.now(UTC)
    assert [(each["name"], each["pool"], each["votes"]) for each in run("rater", "list")] == [
        ("ann@example.org", "preference", 0),
        ("judge", "evaluation", 0),
    ]


def test_metrics_gold_and_samples(database: Database, run: Run, tmp_path: Path) -> None:
    turns = ("--type", "number", "--low", "0", "--description", "Turns needed")
    assert run("feedback", "metric", "turns", *turns) == {"name": "turns", "type": "number"}
    words = ("--category", "mail", "--category", "chat", "--description", "Where")
    run("feedback", "metric", "channel", "--type", "category", *words)
    assert [each["name"] for each in run("feedback", "metrics")] == ["channel", "turns"]
    for wrong in (
        ("turns", "--type", "number", "--description", "again"),
        ("x", "--type", "category", "--description", "none"),
        ("x", "--type", "boolean", "--low", "1", "--description", "bounds"),
        ("x", "--type", "number", "--low", "2", "--high", "1", "--description", "bounds"),
    ):
        assert run("feedback", "metric", *wrong)[0] == 2
    gold = tmp_path / "gold.jsonl"
    gold.write_text(json.dumps({"prompt": HELDOUT_PROMPT, "a": BLUE, "b": BLACK, "expected": "a"}) + "\n\n")
    assert run("feedback", "gold", str(gold))["new"] == 1
    assert run("feedback", "gold", str(gold))["new"] == 0
    assert run("feedback", "gold", str(gold), "--pool", "evaluation")["new"] == 1
    gold.write_text('{"prompt": "x", "a": "y", "b": "z", "expected": "c"}')
    code, errors = run("feedback", "gold", str(gold))
    assert (code, f"{gold}, line 1: expected" in errors) == (2, True)
    put(database.owner_url, response(), response(), response(probe="canary"))
    assert run("feedback", "sample", "sky@aaaaaaaaaaaa", "sea@bbbbbbbbbbbb")["asked"] == 1
    assert run("feedback", "sample", "sky@aaaaaaaaaaaa", "sky@aaaaaaaaaaaa")[0] == 2


def test_a_person_is_forgotten(database: Database, run: Run) -> None:
    mine, second, others = put(
        database.owner_url, response(BLACK), response(BLUE), response(BLUE, user_id="bob")
    )
    put_event(database.owner_url, mine, "thumb", value=-1)
    put_event(database.owner_url, second, "thumb", value=1)
    put_event(database.owner_url, others, "edit", text="Bluer.", user_id="bob")
    [item] = put_comparisons(database.owner_url, 1, user_id="ann")
    put_votes(database.owner_url, item, "a")
    built = run("pairs", "build")
    assert built["pairs"] == 3
    put_policy(database.owner_url, "sky@eeeeeeeeeeee", snapshot=built["digest"])
    put_policy(database.owner_url, "sky@ffffffffffff", "sky@eeeeeeeeeeee")
    put_policy(database.owner_url, "sea@eeeeeeeeeeee")
    report = run("forget", "--user", "ann", "--yes")
    counts = {name: report[name] for name in ("responses", "events", "comparisons", "pairs")}
    assert counts == {"responses": 2, "events": 2, "comparisons": 1, "pairs": 2}
    assert report["snapshots"] == [built["digest"]]
    assert report["policies"] == ["sky@eeeeeeeeeeee", "sky@ffffffffffff"]
    assert report["removed_folders"] == [built["path"]]
    assert not Path(built["path"]).exists()
    code, errors = run("pairs", "stats", built["digest"])
    assert (code, "was withdrawn" in errors) == (2, True)
    again = run("pairs", "build")
    assert again["pairs"] == 1
    assert again["digest"] != built["digest"]
    with psycopg.connect(database.owner_url) as connection:
        for table in ("serving.response", "feedback.feedback_event", "feedback.comparison"):
            found = connection.execute(f"SELECT count(*) FROM {table} WHERE user_id = 'ann'")  # noqa: S608
            assert found.fetchone() == (0,)
        put(database.owner_url, response(BLACK, identity=mine))
        connection.execute("SELECT feedback.forget_returned()")
        assert connection.execute("SELECT user_id FROM serving.response").fetchall() == [("bob",)]
    assert run("forget", "--user", "nobody", "--yes")["responses"] == 0

"""UUIDv7: the example of RFC 9562, and the bounds that partitions are cut at."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.ids import floor_of, id_beside, new_id, time_of

RFC_EXAMPLE = UUID("017f22e2-79b0-7cc3-98c4-dc0c0c07398f")
"""RFC 9562, appendix A.6: made at 2022-02-22 14:22:22 GMT-5."""
RFC_MOMENT = datetime(2022, 2, 22, 19, 22, 22, tzinfo=UTC)

MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1), timezones=st.just(UTC))


def test_the_time_in_the_example_of_the_rfc():
    assert time_of(RFC_EXAMPLE) == RFC_MOMENT
    assert floor_of(RFC_MOMENT) == UUID("017f22e2-79b0-0000-0000-000000000000")


def test_new_ids_increase_and_carry_the_present():
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    ids = [new_id() for _ in range(2000)]
    assert ids == sorted(set(ids))
    assert {identity.version for identity in ids} == {7}
    assert before <= time_of(ids[0]) <= time_of(ids[-1]) <= datetime.now(UTC)


def test_another_version_carries_no_time():
    with pytest.raises(ValueError, match="version 4"):
        time_of(uuid4())


@given(MOMENTS)
def test_the_floor_is_at_most_every_id_of_its_millisecond_and_above_the_one_before(moment: datetime):
    millisecond = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    beside = id_beside(floor_of(moment), "any")
    assert (
        floor_of(moment) == floor_of(millisecond) < beside < floor_of(millisecond + timedelta(milliseconds=1))
    )


@given(st.text(), st.text())
def test_an_id_beside_another_has_its_time_and_follows_from_the_parts(one: str, other: str):
    made = id_beside(RFC_EXAMPLE, one)
    assert (made.version, made.variant, time_of(made)) == (7, RFC_EXAMPLE.variant, RFC_MOMENT)
    assert (made == id_beside(RFC_EXAMPLE, other)) == (one == other)

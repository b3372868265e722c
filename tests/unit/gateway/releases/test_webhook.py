"""The webhook that nobody answers: what is told of it, and what is not."""

import threading

from gateway.releases.webhook import Webhook


def test_of_an_address_only_scheme_and_host_are_told() -> None:
    told: list[tuple[str, str]] = []
    done = threading.Event()

    def gave_up(where: str, reason: str) -> None:
        told.append((where, reason))
        done.set()

    webhook = Webhook(gave_up, first_wait_s=0.001)
    webhook.tell("http://ada:pass@127.0.0.1:9/hooks/T0K3N?key=secret", {})
    assert done.wait(30)
    webhook.stop()
    [(where, reason)] = told
    assert where == "http://127.0.0.1"
    assert "T0K3N" not in reason
    assert "secret" not in reason

"""The parts of one gateway process, made once and handed to every request."""

from collections import OrderedDict
from dataclasses import dataclass, field
from uuid import UUID

from gateway.admission import Admission
from gateway.engines import EnginePool
from gateway.follower import Follower
from gateway.inflight import InFlight
from gateway.metrics import Metrics
from gateway.prover import Prover
from gateway.recorder import Recorder
from gateway.shadow import Shadow
from gateway.trail import Witnesses
from gateway.upstream import Upstream
from ratchet.settings import GatewaySettings

REMEMBERED = 10_000


class ServedTo:
    """Whose the last 10,000 responses of this process are: they may not be in PostgreSQL yet."""

    def __init__(self) -> None:
        self._keys: OrderedDict[UUID, UUID] = OrderedDict()

    def note(self, response_id: UUID, key_id: UUID) -> None:
        """A response belongs to this key."""
        self._keys[response_id] = key_id
        if len(self._keys) > REMEMBERED:
            self._keys.popitem(last=False)

    def key_of(self, response_id: UUID) -> UUID | None:
        """The key of a response, if it is remembered."""
        return self._keys.get(response_id)


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything a request needs.

    Attributes:
        settings: This process's settings.
        follower: The rows it serves by.
        pool: The engines.
        prover: Keeps them proved.
        upstream: Asks them.
        shadow: Asks the candidate what users asked.
        in_flight: Answers under way.
        admission: Who may go on.
        recorder: Keeps what was answered.
        metrics: Counts.
        witnesses: Where each request leaves its trail.
        served_to: Whose the last responses are.
    """

    settings: GatewaySettings
    follower: Follower
    pool: EnginePool
    prover: Prover
    upstream: Upstream
    shadow: Shadow
    in_flight: InFlight
    admission: Admission
    recorder: Recorder
    metrics: Metrics
    witnesses: Witnesses
    served_to: ServedTo = field(default_factory=ServedTo)

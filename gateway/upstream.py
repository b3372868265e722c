"""The way to the engines: one that is proved is asked; another one, only before a byte reached the client."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Protocol
from uuid import UUID

import aiohttp

from gateway import jsontext
from gateway.engines import EnginePool, PooledEngine
from gateway.errors import ApiError, unavailable
from gateway.jsontext import as_object
from gateway.silence import Silence
from gateway.sse import SseParser

CONNECT_S = 5
IDLE_CONNECTION_S = 4
"""Less than the 5 s after which vLLM closes an idle connection."""
FINISH_S = 1
MAX_ANSWER_BYTES = 256 << 20
PASSED_ON = frozenset({400, 413, 422})
UNAVAILABLE_RETRY_S = 2.0


class EngineFailure(ApiError):
    """The engine, not the client, is at fault.

    Attributes:
        doubtful: The engine may not be the one that was proved any more.
        another: A second engine may do better.
    """

    def __init__(
        self, status: int, code: str, message: str, *, doubtful: bool = False, another: bool = True
    ) -> None:
        super().__init__(status, code, message, retry_after_s=UNAVAILABLE_RETRY_S)
        self.doubtful = doubtful
        self.another = another


class Taker(Protocol):
    """Takes an answer in that is to be whole before it goes anywhere.

    Attributes:
        done: It is whole.
    """

    done: bool

    def begins(self, engine: PooledEngine) -> None:
        """An engine begins to answer, perhaps after another one failed in the middle."""
        ...

    def take(self, events: list[bytes]) -> None:
        """The next events.

        Raises:
            ApiError: One is an error, or cannot be read.
        """
        ...


class EngineAnswer:
    """What one engine answers to one request.

    Attributes:
        engine: Who answers.
        boot: Which boot of it was asked.
        fingerprint: What its answer must carry.
    """

    def __init__(self, engine: PooledEngine, response: aiohttp.ClientResponse, silence_s: float) -> None:
        self.engine = engine
        self.boot = engine.boot
        self.fingerprint = engine.proved_fingerprint
        self._response = response
        self._silence = Silence(silence_s, response.close)
        self._parser = SseParser()
        self._first: list[bytes] | None = None

    async def begin(self) -> None:
        """Waits for the first events: a failure until then can be mended elsewhere.

        Raises:
            ApiError: It is an error, or none comes.
        """
        self._first = await self.events()
        if self._first is None:
            raise EngineFailure(502, "engine_failed", "the engine ended its answer before it began")
        if self._first[0].startswith(b'{"error"'):
            raise error_of(500, self._first[0])

    async def read_into(self, taker: Taker) -> None:
        """Lets somebody take the whole answer, who sends nothing on before it is whole.

        Raises:
            ApiError: It is an error, or never comes to its end.
        """
        taker.begins(self.engine)
        while not taker.done and (events := await self.events()) is not None:
            taker.take(events)
        if not taker.done:
            raise broken_off()

    async def read_body(self) -> bytes:
        """The body of a refusal.

        Raises:
            EngineFailure: It broke off, or is beyond all measure.
        """
        pieces: list[bytes] = []
        size = 0
        while piece := await self._read():
            pieces.append(piece)
            size += len(piece)
            if size > MAX_ANSWER_BYTES:
                raise _garbage("the engine's answer is beyond all measure")
        return b"".join(pieces)

    async def events(self) -> list[bytes] | None:
        """Data of the events that arrived since; None when the stream has ended.

        Raises:
            EngineFailure: It broke off, or is no stream of events.
        """
        if self._first is not None:
            first, self._first = self._first, None
            return first
        while piece := await self._read():
            try:
                events = self._parser.feed(piece)
            except ValueError as error:
                raise _garbage(f"the engine does not send events: {error}") from error
            if events:
                return events
        return None

    async def finish(self) -> None:
        """Reads what is left after a stream's last event, so that the connection can be used again."""
        with contextlib.suppress(EngineFailure, TimeoutError):
            async with asyncio.timeout(FINISH_S):
                while await self._read():
                    pass

    def close(self) -> None:
        """Ends the connection unless the answer was read to its end: the engine stops generating."""
        self._silence.stop()
        self._response.close()

    async def _read(self) -> bytes:
        self._silence.begins()
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise (_silent() if self._silence.broken else _broken(error)) from error
        finally:
            self._silence.ends()


class Upstream:
    """Asks engines."""

    def __init__(self, pool: EnginePool, *, connections: int, silence_s: float, api_key: str | None) -> None:
        """Args:
        pool: The engines.
        connections: Requests in flight at most.
        silence_s: Seconds until a stream's first byte, and between two.
        api_key: What engines ask for.
        """
        self._pool = pool
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=connections, limit_per_host=0, keepalive_timeout=IDLE_CONNECTION_S
            ),
            headers={
                "Content-Type": "application/json",
                **({"Authorization": f"Bearer {api_key}"} if api_key else {}),
            },
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Accept-Encoding", "User-Agent"),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        )
        self._silence_s = silence_s

    async def close(self) -> None:
        """Closes every connection."""
        await self._session.close()

    @asynccontextmanager
    async def ask(
        self, policy: str, path: str, request: dict[str, Any], taker: Taker | None
    ) -> AsyncGenerator[EngineAnswer]:
        """The answer of a proved engine that has begun to answer; leaving early makes it stop.

        Args:
            policy: Whose engine.
            path: Which endpoint of it.
            request: Its body; it asks for a stream.
            taker: Has taken the whole answer when this returns; None where pieces are sent on as they come.

        Raises:
            ApiError: No engine answers, or the engine refuses the request.
        """
        body = jsontext.encode(request)
        await self._pool.settled(policy)
        tried: set[UUID] = set()
        failure: ApiError | None = None
        while True:
            engine = self._pool.pick(policy, tried)
            if engine is None:
                raise failure or unavailable(
                    "engine_unavailable", f"no engine serves {policy} now: {self._pool.why_not(policy)}",
                    retry_after_s=UNAVAILABLE_RETRY_S,
                )  # fmt: skip
            tried.add(engine.id)
            boot = engine.boot
            engine.in_flight += 1
            answer: EngineAnswer | None = None
            try:
                try:
                    answer = await self._post(engine, path, body)
                    await (answer.begin() if taker is None else answer.read_into(taker))
                except EngineFailure as error:
                    if error.doubtful:
                        self._pool.doubt(engine, boot, str(error))
                    if not error.another:
                        raise
                    failure = error
                    continue
                try:
                    yield answer
                except EngineFailure as error:
                    if error.doubtful:
                        self._pool.doubt(engine, boot, str(error))
                    raise
                await answer.finish()
                return
            finally:
                engine.in_flight -= 1
                if answer is not None:
                    answer.close()

    async def _post(self, engine: PooledEngine, path: str, body: bytes) -> EngineAnswer:
        try:
            async with asyncio.timeout(self._silence_s):
                response = await self._fresh_post(engine.url + path, body)
        except aiohttp.ConnectionTimeoutError as error:
            raise _broken(error) from error
        except TimeoutError as error:
            raise _silent() from error
        except (aiohttp.ClientError, OSError) as error:
            raise _broken(error) from error
        answer = EngineAnswer(engine, response, self._silence_s)
        if response.status == 200:
            return answer
        try:
            text = await answer.read_body()
        finally:
            answer.close()
        raise error_of(response.status, text)

    async def _fresh_post(self, url: str, body: bytes) -> aiohttp.ClientResponse:
        """Posts, once more where a kept connection turned out to be closed."""
        try:
            return await self._session.post(url, data=body, allow_redirects=False)
        except (aiohttp.ServerDisconnectedError, ConnectionResetError):
            return await self._session.post(url, data=body, allow_redirects=False)


def error_of(status: int, body: bytes) -> ApiError:
    """What an engine's error means for the client: its own mistake is passed on, the engine's is not."""
    try:
        document = as_object(jsontext.decode(body)) or {}
    except ValueError:
        document = {}
    error = as_object(document.get("error")) or document
    message = str(error.get("message") or body[:200].decode("utf-8", "replace"))
    code = error.get("code")
    if status == 500 and isinstance(code, int):
        status = code
    if status in PASSED_ON:
        param = error.get("param")
        too_long = "context length" in message or "max_model_len" in message
        return ApiError(
            status,
            "context_length_exceeded" if too_long else "invalid_value",
            message,
            param=param if isinstance(param, str) and not too_long else None,
        )
    doubtful = status in (401, 403, 404)
    return EngineFailure(502, "engine_failed", f"the engine answered {status}: {message}", doubtful=doubtful)


def broken_off() -> EngineFailure:
    """A stream without its end."""
    return EngineFailure(502, "engine_failed", "the engine ended the stream before its answer was whole")


def _silent() -> EngineFailure:
    return EngineFailure(
        504, "engine_timeout", "the engine has been silent for too long", doubtful=True, another=False
    )


def _broken(error: Exception) -> EngineFailure:
    reason = str(error) or type(error).__name__
    return EngineFailure(503, "engine_failed", f"the connection to the engine broke: {reason}", doubtful=True)


def _garbage(message: str) -> EngineFailure:
    return EngineFailure(502, "engine_failed", message)

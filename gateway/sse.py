"""Server-sent events (WHATWG HTML, 9.2), as an inference engine streams them."""

DONE = b"[DONE]"
MAX_EVENT_BYTES = 16 << 20


class SseParser:
    """Cuts a byte stream, arriving in pieces of any size, into the data of its events.

    Lines end with LF, CRLF or CR; several `data` lines of an event are joined by LF; comments and other
    fields count for nothing; an event that its blank line never ended is never given out.
    """

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events this piece completes, oldest first.

        Raises:
            ValueError: One event is larger than 16 MiB: this is no event stream.
        """
        if not piece:
            return []
        if self._after_cr and piece.startswith(b"\n"):
            self._after_cr = False
            return self.feed(piece[1:])
        self._after_cr = piece.endswith(b"\r")
        lines = (self._tail + piece).splitlines(keepends=True)
        self._tail = b"" if lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        if len(self._tail) + self._size > MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        events: list[bytes] = []
        for line in lines:
            line = line.rstrip(b"\r\n")
            if line.startswith(b"data:"):
                value = line[6:] if line.startswith(b"data: ") else line[5:]
                self._data.append(value)
                self._size += len(value)
            elif line == b"data":
                self._data.append(b"")
            elif not line and self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data.clear()
                self._size = 0
        return events

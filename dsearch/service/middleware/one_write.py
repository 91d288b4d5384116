"""`OneWrite`: sends the head of an answer and the beginning of its body in one write.

uvicorn writes them separately. Each write is a system call and, for a waiting client, a wake-up; together
they are the most expensive part of a small answer.
"""

from __future__ import annotations

import asyncio
from typing import Any

_HEAD, _LENGTH, _EMPTY = b"HTTP/1.1 ", b"\r\ncontent-length: ", b"\r\ncontent-length: 0\r\n"
_JOINED_BYTES = 64 * 1024  # copying more of a body costs more than a second call


class OneWrite(asyncio.Transport):
    """A transport that keeps the head of an answer with a body back until the body's first part is written.

    A head that says no length is a stream's, whose first part may come late: it is written at once. Whoever
    ends an answer calls `flush`: to HEAD there is no body after a head.

    Args:
        transport: what is written to.
    """

    def __init__(self, transport: Any):
        super().__init__()
        self._transport = transport
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """As the transport's."""
        if self._head:
            if len(data) <= _JOINED_BYTES:
                self._head, data = b"", self._head + data
            else:
                self.flush()
        elif data[:9] == _HEAD and isinstance(data, bytes) and _LENGTH in data and _EMPTY not in data:
            self._head = data
            return
        self._transport.write(data)

    def flush(self) -> None:
        """Write what was kept back."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        """As the transport's, which still sends what was written."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """As the transport's."""
        self._head = b""
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """As the transport's."""
        return len(self._head) + self._transport.get_write_buffer_size()

    # The methods that uvicorn calls; asyncio's base class would raise "not implemented".

    def is_closing(self) -> bool:
        """As the transport's."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As the transport's."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """As the transport's."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """As the transport's."""
        self._transport.resume_reading()

    def is_reading(self) -> bool:
        """As the transport's."""
        return self._transport.is_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """As the transport's."""
        self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """As the transport's."""
        return self._transport.get_protocol()

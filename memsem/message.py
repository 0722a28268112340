"""Messages between ranks, as mpi4py spells them: a communicator's point-to-point calls.

    comm = MPI.COMM_WORLD                       # from memsem import mpi as MPI
    comm.Send(array, dest=1, tag=7)             # buffers: upper case
    thing = comm.recv(source=0)                 # objects, pickled: lower case

    | sent by              | the buffer may be reused | the call or its wait ends                           |
    | Send, Isend (eager)  | on return                | at once: the payload travels with the envelope      |
    | Send, Isend (larger) | on return / after Wait   | when the receiver's side has fetched the payload    |
    | Ssend, Issend        | on return / after Wait   | likewise, whatever the size                         |
    | Bsend, Ibsend        | on return                | at once (no attached buffer is needed)              |
    | Recv, Irecv          |                          | when the payload is in the buffer                   |

Messages of one sender in one communicator are matched in the order they were sent, also where a later one is
shorter and faster. Prices: see `memsem.endpoint` and `Fabric.message`.

Left out: collectives other than `Barrier`, inter-communicators, partitioned sends, error handlers.
Source: MPI 4.1, chapter 3; mpi4py 4.1 for names, argument order and errors.
"""

from __future__ import annotations

from typing import Any, Literal

from memsem.bufspec import BufSpec, parse
from memsem.mpi_errors import ERR_ARG
from memsem.persistent import Prequest
from memsem.probed import Message
from memsem.request import Request
from memsem.status import ANY_SOURCE, ANY_TAG, Status
from memsem.transfers import UNLIMITED, Transfers

IRECV_BYTES = 1 << 15
"""Room `irecv` makes for an object unless told otherwise; mpi4py's."""


class Comm(Transfers):
    """Ranks that exchange messages. `COMM_WORLD` has all, `Dup` and `Split` make others."""

    # --- buffers: send ----------------------------------------------------------------------------------

    def Send(self, buf: BufSpec, dest: int, tag: int = 0) -> None:
        """Send; returns when `buf` may be reused, which for a long message is after its match.

        Raises:
            TypeError, ValueError, KeyError, BufferError: `buf`, see `memsem.bufspec`.
            Exception: ERR_RANK, ERR_TAG, ERR_TYPE, ERR_COMM, ERR_BUFFER.
            RankLostError: dest is dead. DeadlockError: it will never be received.
        """
        self._send("Send", buf, dest, tag, blocking=True).Wait()

    def Ssend(self, buf: BufSpec, dest: int, tag: int = 0) -> None:
        """Send; returns when the receiver has matched and fetched it. Raises as `Send`."""
        self._send("Ssend", buf, dest, tag, blocking=True, synchronous=True).Wait()

    def Bsend(self, buf: BufSpec, dest: int, tag: int = 0) -> None:
        """Send; never waits for the receiver. Raises as `Send`."""
        self._send("Bsend", buf, dest, tag, blocking=True, detached=True)

    def Isend(self, buf: BufSpec, dest: int, tag: int = 0) -> Request:
        """Start a `Send`."""
        return self._send("Isend", buf, dest, tag)

    def Issend(self, buf: BufSpec, dest: int, tag: int = 0) -> Request:
        """Start a `Ssend`."""
        return self._send("Issend", buf, dest, tag, synchronous=True)

    def Ibsend(self, buf: BufSpec, dest: int, tag: int = 0) -> Request:
        """Start a `Bsend`."""
        return self._send("Ibsend", buf, dest, tag, detached=True)

    Rsend, Irsend = Send, Isend

    def Send_init(self, buf: BufSpec, dest: int, tag: int = 0) -> Prequest:
        """Describe a send to be started later, many times; `buf` is read at each start."""
        self._check_dest(dest, tag)
        return Prequest.prepared(self, lambda: self._send("Send_init", buf, dest, tag).operations)

    def Ssend_init(self, buf: BufSpec, dest: int, tag: int = 0) -> Prequest:
        """As `Send_init`, synchronous."""
        self._check_dest(dest, tag)
        return Prequest.prepared(
            self, lambda: self._send("Ssend_init", buf, dest, tag, synchronous=True).operations
        )

    # --- buffers: receive -------------------------------------------------------------------------------

    def Recv(
        self, buf: BufSpec, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> None:
        """Receive into `buf`.

        Raises:
            as `Send`; Exception: ERR_TRUNCATE when the message is longer than `buf`, which is full then.
        """
        self._receive("Recv", buf, source, tag, blocking=True).Wait(status)

    def Irecv(self, buf: BufSpec, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Start a `Recv`; `buf` is not to be touched before the request has ended."""
        return self._receive("Irecv", buf, source, tag)

    def Recv_init(self, buf: BufSpec, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        """Describe a receive to be started later, many times."""
        self._check_source(source, tag)
        return Prequest.prepared(self, lambda: self._receive("Recv_init", buf, source, tag).operations)

    def Sendrecv(
        self,
        sendbuf: BufSpec,
        dest: int,
        sendtag: int = 0,
        recvbuf: BufSpec = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send and receive at once; neither waits for the other. Raises as `Send` and `Recv`."""
        self.Isendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag).Wait(status)

    def Isendrecv(
        self,
        sendbuf: BufSpec,
        dest: int,
        sendtag: int = 0,
        recvbuf: BufSpec = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
    ) -> Request:
        """Start a `Sendrecv`; the request ends when both have."""
        self._check_receive(recvbuf, source, recvtag)  # before anything is sent
        leaves = self._send("Sendrecv", sendbuf, dest, sendtag)
        arrives = self._receive("Sendrecv", recvbuf, source, recvtag)
        return Request.of(self, *leaves.operations, *arrives.operations)

    def Sendrecv_replace(
        self,
        buf: BufSpec,
        dest: int,
        sendtag: int = 0,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send what is in `buf` and receive into it (a send has read its buffer when it is posted)."""
        self.Isendrecv(buf, dest, sendtag, buf, source, recvtag).Wait(status)

    # --- finding messages -------------------------------------------------------------------------------

    def Probe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Literal[True]:
        """Wait for a message that no receive has taken; it stays for a receive. Fills `status`."""
        self._probe("Probe", source, tag, status, wait=True)
        return True

    def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Return whether such a message is here now; a look in vain costs a poll."""
        return self._probe("Iprobe", source, tag, status, wait=False) is not None

    def Mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message:
        """As `Probe`, and take the message: only the `Message` returned can receive it."""
        found = self._probe("Mprobe", source, tag, status, wait=True)
        assert found is not None
        return self._taken(found)

    def Improbe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Message | None:
        """As `Iprobe`, and take the message; None when there is none."""
        found = self._probe("Improbe", source, tag, status, wait=False)
        return None if found is None else self._taken(found)

    probe, iprobe, mprobe, improbe = Probe, Iprobe, Mprobe, Improbe

    # --- objects ----------------------------------------------------------------------------------------

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """`Send` of a pickled object."""
        self._object("send", obj, dest, tag, blocking=True).Wait()

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """`Ssend` of a pickled object."""
        self._object("ssend", obj, dest, tag, blocking=True, synchronous=True).Wait()

    def bsend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """`Bsend` of a pickled object."""
        self._object("bsend", obj, dest, tag, blocking=True, detached=True)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """`Isend` of a pickled object."""
        return self._object("isend", obj, dest, tag)

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """`Issend` of a pickled object."""
        return self._object("issend", obj, dest, tag, synchronous=True)

    def ibsend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """`Ibsend` of a pickled object."""
        return self._object("ibsend", obj, dest, tag, detached=True)

    def recv(
        self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Any:
        """Receive an object; None from PROC_NULL.

        Args:
            buf: memory that bounds the pickle's length; by default none does.
        """
        room = UNLIMITED if buf is None else parse(buf, True).nbytes
        return self._receive_object("recv", room, source, tag, blocking=True).wait(status)

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Start a `recv`; `wait` and `test` of the request return the object.

        Args:
            buf: memory, or a number of bytes, that bounds the pickle's length: 32 KiB by default, and a
                longer message ends with ERR_TRUNCATE, as under mpi4py.

        Raises:
            Exception: ERR_ARG, a negative number of bytes; ERR_RANK, ERR_TAG: no such source or tag.
        """
        size = IRECV_BYTES if buf is None else buf if isinstance(buf, int) else parse(buf, True).nbytes
        if size < 0:
            raise self._refused(ERR_ARG, f"irecv: room for {size} bytes; 0 or more", size)
        return self._receive_object("irecv", size, source, tag)

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """Send an object and receive one at once."""
        self._check_source(source, recvtag)  # before anything is sent
        room = UNLIMITED if recvbuf is None else parse(recvbuf, True).nbytes
        leaves = self._object("sendrecv", sendobj, dest, sendtag)
        arrives = self._receive_object("sendrecv", room, source, recvtag)
        thing = arrives.wait(status)
        leaves.Wait()
        return thing

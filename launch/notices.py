"""mpirun's standard error without its notice of an exit status that a line of ours has explained already.

A rank that meets a mistake of its caller prints `superpod: error: …` and exits with 2. mpirun then adds

    --------------------------------------------------------------------------
    prterun detected that one or more processes exited with non-zero status,
    …
       Exit code:    2
    --------------------------------------------------------------------------

and has no option that leaves it out. Only that notice is dropped, and only behind such a line: signals, other
exit codes and ranks that said nothing are shown as ever. A stub whose fork server has ended says so and exits
with 1: the same.
"""

import os
import threading

_RULE = b"-" * 74 + b"\n"
_NOTICED = b"prterun "
_HEAD = _RULE + b"prterun detected that one or more processes exited with non-zero status,"
_OURS = {b"superpod: error: ": b"Exit code:    2\n", b"superpod-rank: ": b"Exit code:    1\n"}
"""How a line of ours begins, and what the notice it explains says."""

_LONGEST = max(map(len, _OURS))


class NoticeFilter:
    """A stream of bytes in, the same one out without explained notices; holds back what may become one."""

    def __init__(self) -> None:
        self._held = b""
        self._line = b""  # what of the line at hand has been shown, as much as it takes to know ours
        self._explained: set[bytes] = set()
        self.told = False
        """Whether anything has been said of how the ranks ended."""

    def feed(self, data: bytes) -> bytes:
        """Return what of all bytes so far can be shown now and has not been."""
        self._held += data
        shown = b""
        while self._held:
            if not self._line and self._held.startswith(_HEAD[: len(self._held)]):
                notice = self._notice()
                if notice is None:
                    break
                shown += notice
                continue
            line, newline, rest = self._held.partition(b"\n")
            self._line = (self._line + line)[:_LONGEST]
            self._explained |= {ours for ours in _OURS if self._line.startswith(ours)}
            self.told |= bool(self._explained) or self._line.startswith(_NOTICED)
            self._held = rest
            if newline:
                self._line = b""
            shown += line + newline
        return shown

    def end(self) -> bytes:
        """Return what is still held back."""
        held, self._held = self._held, b""
        return held

    def _notice(self) -> bytes | None:
        """Take a whole notice off what is held; what is to be shown of it, None while it may go on."""
        end = self._held.find(_RULE, len(_HEAD))
        if end < 0:
            return None
        notice, self._held = self._held[: end + len(_RULE)], self._held[end + len(_RULE) :]
        self.told = True
        return b"" if any(_OURS[ours] in notice for ours in self._explained) else notice


class StderrRelay:
    """A pipe for mpirun's standard error (`fd`), and a thread that passes it on to ours."""

    def __init__(self) -> None:
        self._source, self.fd = os.pipe()
        self._notices = NoticeFilter()
        self._thread = threading.Thread(target=self._pass_on, daemon=True)

    def start(self) -> None:
        """Begin, when the child has the pipe's other end."""
        os.close(self.fd)
        self._thread.start()

    def finish(self, timeout_s: float) -> None:
        """Wait for the end of what the child wrote."""
        self._thread.join(timeout_s)

    @property
    def told(self) -> bool:
        """Whether anything has been said of how the ranks ended; ask after `finish`."""
        return self._notices.told

    def _pass_on(self) -> None:
        while data := os.read(self._source, 65536):
            _write(self._notices.feed(data))
        _write(self._notices.end())
        os.close(self._source)


def _write(data: bytes) -> None:
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:  # nobody reads it any more; mpirun must not wait for that
        pass

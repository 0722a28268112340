"""mpirun's standard error without its notice of an exit status that a line of ours has explained already.

A rank that meets a mistake of its caller prints `superpod: error: …` and exits with 2. mpirun then adds

    --------------------------------------------------------------------------
    prterun detected that one or more processes exited with non-zero status,
    …
       Exit code:    2
    --------------------------------------------------------------------------

and has no option that leaves it out. Only that notice is dropped, and only behind such a line: signals, other
exit codes and ranks that said nothing are shown as ever.
"""

import os
import threading

_RULE = b"-" * 74 + b"\n"
_HEAD = _RULE + b"prterun detected that one or more processes exited with non-zero status,"
_OURS = b"superpod: error: "
_MISTAKE = b"Exit code:    2\n"


class NoticeFilter:
    """A stream of bytes in, the same one out without explained notices; holds back what may become one."""

    def __init__(self) -> None:
        self._held = b""
        self._line = b""  # what of the line at hand has been shown, as much as it takes to know ours
        self._explained = False

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
            self._line = (self._line + line)[: len(_OURS)]
            self._explained |= self._line == _OURS
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
        return b"" if self._explained and _MISTAKE in notice else notice


class StderrRelay:
    """A pipe for mpirun's standard error (`fd`), and a thread that passes it on to ours."""

    def __init__(self) -> None:
        self._source, self.fd = os.pipe()
        self._thread = threading.Thread(target=self._pass_on, daemon=True)

    def start(self) -> None:
        """Begin, when the child has the pipe's other end."""
        os.close(self.fd)
        self._thread.start()

    def finish(self, timeout_s: float) -> None:
        """Wait for the end of what the child wrote."""
        self._thread.join(timeout_s)

    def _pass_on(self) -> None:
        notices = NoticeFilter()
        while data := os.read(self._source, 65536):
            _write(notices.feed(data))
        _write(notices.end())
        os.close(self._source)


def _write(data: bytes) -> None:
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:  # nobody reads it any more; mpirun must not wait for that
        pass

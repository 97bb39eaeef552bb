"""Shells start background jobs with Ctrl-C ignored; tests send it to themselves and need the usual handler."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

"""A child without a policy, for tests of what happens between two processes: it does what it is told."""

from __future__ import annotations

import os
import sys
import time
from multiprocessing.connection import Connection

from phyai_core.child_process import start_heartbeat


def main(pipe: int, heartbeat: int) -> None:
    connection = Connection(pipe)
    if connection.recv() == "beat":
        start_heartbeat(heartbeat)
    connection.send("ready")
    while True:
        try:
            order, value = connection.recv()
        except EOFError:
            return
        if order == "exit":
            os._exit(value)
        if order == "sleep":
            connection.send("asleep")
            time.sleep(value)
        connection.send(value)


if __name__ == "__main__":
    main(*(int(handle) for handle in sys.argv[1:]))

"""A child without a policy, for tests of what happens between two processes: it does what it is told."""

from __future__ import annotations

import os
import sys
import time

from phyai_core.child_process import start_heartbeat
from phyai_core.message_socket import MessageSocket


def main(pipe: int, heartbeat: int) -> None:
    connection = MessageSocket.open(pipe)
    if connection.receive() == "beat":
        start_heartbeat(heartbeat)
    connection.send("ready")
    while True:
        try:
            order, value = connection.receive()
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

"""The would-be messages of a replay as a bag: chunks, control times, commands and what goes to the controller."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from phyai_core.timing import ChunkTiming
from phyai_core.types import Command, PolicySpec
from phyai_ros.replay.bag_writer import BagWriter, type_name
from phyai_ros.replay.driver import Driver
from phyai_ros.replay.topics import NodeName

REPLAYED = "/replay"  # put before the topics, so that they can stand beside the recorded ones


class OutputBag:
    """Writes what a replay would have published, under /replay; use as a context manager. The classes of the messages
    are those of the node itself."""

    def __init__(self, path: Path, spec: PolicySpec, node: NodeName) -> None:
        from phyai_ros import messages

        self._messages = messages
        self._writer = BagWriter(path)
        self._spec, self._node = spec, node
        self._names: list[str] = []

    def __enter__(self) -> OutputBag:
        return self

    def __exit__(self, *failure: Any) -> None:
        self._writer.__exit__(*failure)

    def listen(self, driver: Driver) -> None:
        """Hear what `driver` reports."""
        self._names = list(driver.log.names)
        driver.on_command = self._write_command
        driver.on_chunk = self._write_chunk

    def write_output(self, stamp_ns: int, topic: str, message: Any) -> None:
        """What an output sends; of the goal of an action its trajectory."""
        self._write(self._node.resolve(topic), stamp_ns, getattr(message, "trajectory", message))

    def _write_command(self, command: Command, stamp_ns: int) -> None:
        message = self._messages.to_command_message(command.row, self._names, stamp_ns)
        self._write(self._node.resolve("~/command"), stamp_ns, message)

    def _write_chunk(self, command: Command, timing: ChunkTiming, stamp_ns: int) -> None:
        make = {
            "~/chunk": partial(self._messages.to_chunk_message, command, self._spec, self._names, stamp_ns),
            "~/timing": partial(self._messages.to_timing_message, timing, stamp_ns),
        }
        for name, message in make.items():
            self._write(self._node.resolve(name), stamp_ns, message())

    def _write(self, topic: str, stamp_ns: int, message: Any) -> None:
        self._writer.write(REPLAYED + topic, type_name(type(message)), stamp_ns, message)

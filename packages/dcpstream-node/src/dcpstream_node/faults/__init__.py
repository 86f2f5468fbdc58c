"""Faults on demand, for people who test what talks to a node.

A `Fault` says what goes wrong and when. `Faults` holds those of a node and decides for each frame; the connections
carry the decision out. `FaultyDisk` and `MovableClock` stand before the system's files and clocks. Nothing here happens
unless it is asked for.
"""

from dcpstream_node.faults.clock import MovableClock
from dcpstream_node.faults.disk import FaultyDisk
from dcpstream_node.faults.fault import KINDS, Fault, read_fault
from dcpstream_node.faults.faults import Faults, is_meant

__all__ = ["KINDS", "Fault", "Faults", "FaultyDisk", "MovableClock", "is_meant", "read_fault"]

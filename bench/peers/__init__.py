"""Peers of fastagg in several cases: the plainest C++ loop, the native call alone, torch.compile, rows in torch, and a
whole arrival in eager torch. Peers of one case are in its file."""

from peers.compiled import compiled
from peers.native import native_call
from peers.plain import plain_loop
from peers.rows import grid, whole

__all__ = ["compiled", "grid", "native_call", "plain_loop", "whole"]

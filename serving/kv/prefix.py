"""Which prefixes are cached, and where: a radix tree whose edges are whole blocks, and an index by name.

A block's hash covers its tokens and, through its parent's hash, everything before it, so equal hashes mean
equal prefixes. A node may be in HBM, in the DRAM pool, or in both; what has left all tiers leaves the tree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from emulator.errors import InternalError

__all__ = ["ROOT_HASH", "Node", "PrefixIndex", "block_hashes"]

ROOT_HASH = b"\0" * 16


def block_hashes(
    tokens: NDArray[np.int64],
    size: int,
    parent: bytes = ROOT_HASH,
    spans: Sequence[int] = (),
    ahead: int = 0,
) -> list[bytes]:
    """Hashes of the full blocks of `tokens`, int64[n], that `ahead` more tokens follow: 16 bytes each.

    Args:
        size: tokens of a block.
        parent: hash of the block before the first.
        spans: priced tokens each block stands for, where a token stands for several; part of the content.
        ahead: tokens after a block that its content depends on, too (draft layers look so far).
    """
    raw = np.ascontiguousarray(tokens, dtype="<i8")
    hashes = []
    for index in range(max(0, len(raw) - ahead) // size):
        digest = hashlib.blake2b(parent, digest_size=16)
        digest.update(raw[index * size : (index + 1) * size + ahead].tobytes())
        if spans:
            digest.update(int(spans[index]).to_bytes(8, "little"))
        parent = digest.digest()
        hashes.append(parent)
    return hashes


@dataclass(eq=False)
class Node:
    """One cached block: its hash, its place in the tree, and its block in each tier (None: not there)."""

    hash: bytes
    parent: Node | None
    children: dict[bytes, Node] = field(default_factory=dict)
    hbm: int | None = None
    dram: int | None = None

    @property
    def is_gone(self) -> bool:
        return self.hbm is None and self.dram is None


class PrefixIndex:
    """The tree and the names."""

    def __init__(self) -> None:
        self.root = Node(ROOT_HASH, None)
        self._by_hbm: dict[int, Node] = {}
        self._by_dram: dict[int, Node] = {}
        self._names: dict[Hashable, tuple[bytes, ...]] = {}

    def match(self, hashes: Sequence[bytes]) -> list[Node]:
        """The longest cached path along these block hashes."""
        node, path = self.root, []
        for key in hashes:
            child = node.children.get(key)
            if child is None or child.is_gone:
                break
            path.append(child)
            node = child
        return path

    def name(self, name: Hashable, hashes: Sequence[bytes]) -> None:
        """Remember a prefix by name, whether it stays cached or not."""
        self._names[name] = tuple(hashes)

    def match_name(self, name: Hashable) -> list[Node]:
        """The longest cached path of a named prefix; empty for an unknown name."""
        return self.match(self._names.get(name, ()))

    def child(self, parent: Node, key: bytes) -> Node:
        """The node of a block after `parent`, made if it is new."""
        node = parent.children.get(key)
        if node is None:
            node = parent.children[key] = Node(key, parent)
        return node

    def place(self, node: Node, hbm: int | None = None, dram: int | None = None) -> None:
        """A node's block is now (also) there."""
        if hbm is not None:
            node.hbm, self._by_hbm[hbm] = hbm, node
        if dram is not None:
            node.dram, self._by_dram[dram] = dram, node

    def in_hbm(self, block: int) -> Node | None:
        """The node whose content an HBM block holds."""
        return self._by_hbm.get(block)

    def in_dram(self, block: int) -> Node | None:
        return self._by_dram.get(block)

    def leave_hbm(self, node: Node) -> None:
        """A node's HBM block has other content from now on."""
        assert node.hbm is not None
        del self._by_hbm[node.hbm]
        node.hbm = None
        self._prune(node)

    def leave_dram(self, node: Node) -> None:
        assert node.dram is not None
        del self._by_dram[node.dram]
        node.dram = None
        self._prune(node)

    def _prune(self, node: Node) -> None:
        """Cut off what is nowhere any more and has nothing below it."""
        while node.parent is not None and node.is_gone and not node.children:
            parent = node.parent
            del parent.children[node.hash]
            node.parent = None
            node = parent

    def nodes(self) -> Iterator[Node]:
        """Every node but the root, parents first."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            yield from node.children.values()
            stack.extend(node.children.values())

    def check_integrity(self) -> None:
        """Raise InternalError unless tree and tables say the same."""
        nodes = list(self.nodes())
        hbm = {node.hbm: node for node in nodes if node.hbm is not None}
        dram = {node.dram: node for node in nodes if node.dram is not None}
        if hbm != self._by_hbm or dram != self._by_dram:
            raise InternalError("KV prefix index: the tree and the tables of blocks disagree")
        for node in nodes:
            if node.is_gone and not node.children:
                raise InternalError("KV prefix index: a leaf is nowhere")
            if node.parent is None or node.parent.children.get(node.hash) is not node:
                raise InternalError("KV prefix index: a node hangs in the wrong place")

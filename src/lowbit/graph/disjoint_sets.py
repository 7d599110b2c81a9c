"""Disjoint sets (union-find): what belongs together because something connects it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """Sets of members, joined one pair after another."""

    def __init__(self) -> None:
        self._parents: dict[T, T] = {}

    def root(self, member: T) -> T:
        """Return the member that stands for the set of one; a new member is a set of its own."""
        path = []
        while (parent := self._parents.setdefault(member, member)) != member:
            path.append(member)
            member = parent
        for each in path:
            self._parents[each] = member
        return member

    def join(self, first: T, *others: T) -> None:
        """Make one set of the sets of all these members."""
        root = self.root(first)
        for other in others:
            self._parents[self.root(other)] = root

    def sets(self) -> list[list[T]]:
        """Return the members of each set, in the order in which they came."""
        found: dict[T, list[T]] = {}
        for member in self._parents:
            found.setdefault(self.root(member), []).append(member)
        return list(found.values())

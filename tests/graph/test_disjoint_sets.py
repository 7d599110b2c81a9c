from lowbit.graph.disjoint_sets import DisjointSets


def test_what_is_connected_in_any_order_is_one_set() -> None:
    sets: DisjointSets[str] = DisjointSets()
    sets.join("a", "b")
    sets.join("c", "d", "e")
    sets.join("e", "b")

    assert sets.root("a") == sets.root("d")
    assert sets.root("f") == "f"
    assert sets.sets() == [["a", "b", "c", "d", "e"], ["f"]]


def test_a_long_chain_is_one_set() -> None:
    sets: DisjointSets[int] = DisjointSets()
    for number in range(5000):
        sets.join(number + 1, number)

    assert sets.root(0) == sets.root(5000)
    assert len(sets.sets()) == 1

import onnx_ir as ir

from lowbit.config.presets import find_preset
from lowbit.config.specs import BLOCKS
from lowbit.planning.requests import Placement, is_lone
from lowbit.planning.rules import Scheme

_INT8, _INT16 = (find_preset(name).activation for name in ("A8W8", "A16W8"))


def test_a_later_rule_overrides_an_earlier_one() -> None:
    placement, value = Placement(), ir.val("x", shape=[2])

    nodes = [ir.node("Relu", [value], name=name) for name in ("first", "weaker", "stronger")]

    placement.request(value, Scheme(_INT8, None, None, priority=1), nodes[0], "input")
    placement.request(value, Scheme(_INT16, None, None, priority=0), nodes[1], "input")
    assert placement.activations["x"].spec == _INT8
    placement.request(value, Scheme(_INT16, None, None, priority=2), nodes[2], "input")

    found = placement.activations["x"]
    assert (found.spec, found.why) == (_INT16, "input of Relu stronger")


def test_no_block_is_made_of_a_single_number() -> None:
    assert is_lone(ir.val("x", shape=[]), BLOCKS["MX6"])
    assert not is_lone(ir.val("x", shape=[1]), BLOCKS["MX6"])

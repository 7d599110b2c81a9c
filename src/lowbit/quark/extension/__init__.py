"""AMD Quark's own methods, added to lowbit as any third party would add them.

Importing this module makes the kinds below known to configuration files; the entry point
``lowbit.extensions`` names it.
"""

from lowbit.quark.extension.cle import QuarkCle
from lowbit.quark.extension.int16_scale import QuarkInt16Scale
from lowbit.quark.extension.methods import (
    QuarkEntropy,
    QuarkLayerwisePercentile,
    QuarkMinMse,
    QuarkPercentile,
)
from lowbit.quark.extension.smooth_quant import QuarkSmoothQuant

__all__ = [
    "QuarkCle",
    "QuarkEntropy",
    "QuarkInt16Scale",
    "QuarkLayerwisePercentile",
    "QuarkMinMse",
    "QuarkPercentile",
    "QuarkSmoothQuant",
]

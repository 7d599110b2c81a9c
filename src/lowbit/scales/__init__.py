"""From statistics to parameters.

Scales and zero points are solved on numbers before anything is quantized, so that stored integers
always match their scale.
"""

from __future__ import annotations

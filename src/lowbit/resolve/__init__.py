"""From statistics to parameters: scales and zero points, solved on numbers before anything is
quantized, so that stored integers always match their scale.
"""

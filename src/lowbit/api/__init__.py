"""The public functions: quantize, plan, compare, convert, inspect, each in a module that loads what it needs."""

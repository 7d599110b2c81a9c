from lowbit.quark.version import *

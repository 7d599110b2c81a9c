from lowbit.quark.shares.utils import *

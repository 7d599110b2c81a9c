from lowbit.quark.shares import *

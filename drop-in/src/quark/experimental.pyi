from lowbit.quark.experimental import *

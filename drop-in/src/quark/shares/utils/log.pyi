from lowbit.quark.common import *

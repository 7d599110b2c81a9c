from lowbit.quark.common.utils import *

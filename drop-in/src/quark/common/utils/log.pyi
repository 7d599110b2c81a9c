from lowbit.quark.common.utils.log import *

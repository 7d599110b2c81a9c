from lowbit.quark.shares.utils.log import *

from lowbit.quark.shares.utils.testing_utils import *

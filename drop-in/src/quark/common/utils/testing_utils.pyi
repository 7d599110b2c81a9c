from lowbit.quark.common.utils.testing_utils import *

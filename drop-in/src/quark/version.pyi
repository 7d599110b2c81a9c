from lowbit.quark import *

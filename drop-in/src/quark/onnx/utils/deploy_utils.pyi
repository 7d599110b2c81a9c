from lowbit.quark.onnx.utils.deploy_utils import *

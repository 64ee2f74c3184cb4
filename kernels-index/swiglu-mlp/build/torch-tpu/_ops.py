import torch

ops = torch.ops._swiglu_mlp_tpu_a5c936a


def add_op_namespace_prefix(op_name: str) -> str:
    return f"_swiglu_mlp_tpu_a5c936a::{op_name}"
